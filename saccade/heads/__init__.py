"""Open a Hugging Face causal model, find its heads, capture what they write, change it."""

from saccade.heads.capture import (
    Captured,
    capture,
    direct_logits,
    direct_states,
    head_outputs,
    output_matrix,
)
from saccade.heads.interventions import (
    Ablate,
    Change,
    InjectHead,
    InjectResidual,
    Patch,
    Scale,
    Touched,
    intervene,
    mean_z,
)
from saccade.heads.model import DEFAULT_MODEL, LanguageModel, open_model, wrap_model
from saccade.heads.norms import FinalNorm, FrozenNorm
from saccade.heads.taps import HeadLayer, find_taps
from saccade.heads.unembed import Unembedding

__all__ = [
    "DEFAULT_MODEL",
    "Ablate",
    "Captured",
    "Change",
    "FinalNorm",
    "FrozenNorm",
    "HeadLayer",
    "InjectHead",
    "InjectResidual",
    "LanguageModel",
    "Patch",
    "Scale",
    "Touched",
    "Unembedding",
    "capture",
    "direct_logits",
    "direct_states",
    "find_taps",
    "head_outputs",
    "intervene",
    "mean_z",
    "open_model",
    "output_matrix",
    "wrap_model",
]
