"""Greedy search: always the likeliest next symbol."""

from typing import Any

import torch

from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.stepper import Stepper
from saccade.decoding.stopping import ending
from saccade.decoding.walk import walk


def greedy(stepper: Stepper, source: Any, *, max_length: int) -> list[Hypothesis]:
    """Decode one hypothesis a sentence with the likeliest symbol at every step.

    Args:
        max_length: The most symbols, the end symbol counted; what is longer is cut there.
    """
    found = walk(
        stepper,
        source,
        choose=lambda log_probs: torch.argmax(log_probs, dim=-1),
        end=ending,
        max_length=max_length,
    )
    return [only for (only,) in found]
