"""What every select is: from scores to weights."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor, nn


class Selected(NamedTuple):
    """Weights over the keys, and how likely the choice was where one was made by chance."""

    weights: Float[Tensor, "batch query_pos key_pos"]
    log_prob: Float[Tensor, "batch query_pos"] | None = None
    """Of what was chosen; None where nothing is left to chance."""
    entropy: Float[Tensor, "batch query_pos"] | None = None
    """Of the choice, in nats, for an entropy bonus; None where nothing is left to chance."""


class Select(nn.Module, ABC):
    """``select(scores, mask) -> weights``.

    A masked key has weight 0 exactly, and a query that may attend to nothing has no weight at all.
    """

    looks_back: ClassVar[bool] = False
    """True: ``forward`` has a third argument, the weights of the step before."""

    @abstractmethod
    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
    ) -> Selected:
        """Weights for every query."""
