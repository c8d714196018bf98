"""From a model that predicts the next symbol to whole sequences."""

from saccade.decoding.beam import BeamResult, beam
from saccade.decoding.ctc_greedy import ctc_greedy
from saccade.decoding.ensemble import Ensemble
from saccade.decoding.fusion import DeepFusion, ShallowFusion
from saccade.decoding.greedy import greedy
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.prefix_beam import prefix_beam
from saccade.decoding.rescoring import by_model, log_prob_of, rescore
from saccade.decoding.sampling import sample
from saccade.decoding.stepper import Started, Stepped, Stepper
from saccade.decoding.stopping import LengthPredictor, coin_loss, stop_when_none_left

__all__ = [
    "BeamResult",
    "DeepFusion",
    "Ensemble",
    "Hypothesis",
    "LengthPredictor",
    "ShallowFusion",
    "Started",
    "Stepped",
    "Stepper",
    "beam",
    "by_model",
    "coin_loss",
    "ctc_greedy",
    "greedy",
    "log_prob_of",
    "prefix_beam",
    "rescore",
    "sample",
    "stop_when_none_left",
]
