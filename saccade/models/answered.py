"""What a system that answers questions about a story gives, whichever it is."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Answered(NamedTuple):
    """An answer, and which facts were read for it."""

    logits: Float[Tensor, "batch d_vocab"]
    """Of every word as the answer."""
    weights: Float[Tensor, "batch hop fact"]
    """How much each look at the story read of each fact."""
