"""Open a Hugging Face causal model, find its heads, capture what they write."""

from saccade.heads.capture import (
    Captured,
    capture,
    direct_logits,
    direct_states,
    head_outputs,
    output_matrix,
)
from saccade.heads.model import DEFAULT_MODEL, LanguageModel, open_model, wrap_model
from saccade.heads.norms import FinalNorm, FrozenNorm
from saccade.heads.taps import HeadLayer, find_taps
from saccade.heads.unembed import Unembedding

__all__ = [
    "DEFAULT_MODEL",
    "Captured",
    "FinalNorm",
    "FrozenNorm",
    "HeadLayer",
    "LanguageModel",
    "Unembedding",
    "capture",
    "direct_logits",
    "direct_states",
    "find_taps",
    "head_outputs",
    "open_model",
    "output_matrix",
    "wrap_model",
]
