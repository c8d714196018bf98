"""What every score is: a number for how well each key answers each query."""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError


class Score(nn.Module, ABC):
    """``score(query, keys) -> scores``, in two parts, because keys outlive a query.

    A decoder asks the same keys at every step: `project` does once a sentence what depends on keys
    alone, ``forward`` does at each step the rest. To add a score, subclass, write ``forward`` (and
    `project`, if keys are transformed), and name it with `saccade.attention.register_score`.
    """

    looks_back: ClassVar[bool] = False
    """True: ``forward`` has a third argument, the weights of the step before."""

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos d_projected"]:
        """What ``forward`` wants to know of the keys; here the keys themselves."""
        return keys

    @abstractmethod
    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        projected: Float[Tensor, "batch key_pos d_projected"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query, before any mask."""


def check_same_size(score: str, *, d_query: int, d_key: int) -> None:
    """Refuse sizes that differ, for scores that compare a query with a key number by number."""
    if d_query != d_key:
        raise UsageError(
            f"the {score} score needs queries and keys of one size, "
            f"got d_query={d_query} and d_key={d_key}",
            hint="use the bilinear or the additive score, or project one of the two",
        )
