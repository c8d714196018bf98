"""Score, select, attend; multi-head attention; masks and positions."""

from saccade.attention.additive import AdditiveScore
from saccade.attention.attend import Attended, Attention, Memory
from saccade.attention.bilinear import BilinearScore
from saccade.attention.cosine import CosineScore
from saccade.attention.dot import DotScore
from saccade.attention.gumbel import GumbelSelect
from saccade.attention.hard import HardSelect
from saccade.attention.linear_concat import LinearConcatScore
from saccade.attention.location import LocationScore, MixedScore
from saccade.attention.masks import (
    causal_mask,
    masked_log_softmax,
    masked_softmax,
    padding_mask,
)
from saccade.attention.mean import MeanSelect
from saccade.attention.monotonic import MonotonicSelect
from saccade.attention.multi_head import KeysValues, MultiHeadAttended, MultiHeadAttention
from saccade.attention.positions import LearnedPositions, sinusoidal_positions
from saccade.attention.scaled_dot import ScaledDotScore
from saccade.attention.score import Score
from saccade.attention.scores import ScoreSizes, make_score, register_score, score_names
from saccade.attention.select import Select, Selected
from saccade.attention.selects import make_select, register_select, select_names
from saccade.attention.soft import SoftSelect

__all__ = [
    "AdditiveScore",
    "Attended",
    "Attention",
    "BilinearScore",
    "CosineScore",
    "DotScore",
    "GumbelSelect",
    "HardSelect",
    "KeysValues",
    "LearnedPositions",
    "LinearConcatScore",
    "LocationScore",
    "MeanSelect",
    "Memory",
    "MixedScore",
    "MonotonicSelect",
    "MultiHeadAttended",
    "MultiHeadAttention",
    "ScaledDotScore",
    "Score",
    "ScoreSizes",
    "Select",
    "Selected",
    "SoftSelect",
    "causal_mask",
    "make_score",
    "make_select",
    "masked_log_softmax",
    "masked_softmax",
    "padding_mask",
    "register_score",
    "register_select",
    "score_names",
    "select_names",
    "sinusoidal_positions",
]
