"""How hard the next training example is: the four curricula of Learning to Execute."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from saccade.errors import UsageError

STRATEGIES = ("baseline", "naive", "mix", "combined")
# One in five examples of "combined" comes from "mix", as in the authors' code (there "blend").
_MIXED = 0.2


class Difficulty(NamedTuple):
    """How many digits numbers have at most, and how many operations are combined."""

    length: int
    nesting: int


@dataclass(frozen=True)
class Curriculum:
    """Zaremba and Sutskever, 2014, section 3.3 (https://arxiv.org/abs/1410.4615).

    * baseline: always the target difficulty.
    * naive: starts with length 1 and nesting 1. Whenever learning stops making progress the length
      grows by one; beyond the target length the nesting grows by one and the length is 1 again.
    * mix: length and nesting are each drawn evenly from 1 to the target's, for every example.
    * combined: each example is drawn from "mix" or from "naive".

    The curriculum does not know about progress: whoever trains says at which ``stage`` it is.

    >>> curriculum = Curriculum("naive", Difficulty(length=2, nesting=2))
    >>> [tuple(curriculum.at(stage)) for stage in range(curriculum.n_stages)]
    [(1, 1), (2, 1), (1, 2), (2, 2)]
    """

    strategy: str
    target: Difficulty

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UsageError(
                f"no curriculum {self.strategy!r}", hint=f"one of {', '.join(STRATEGIES)}"
            )
        if min(self.target) < 1:
            raise UsageError(
                f"length {self.target.length} and nesting {self.target.nesting} are no difficulty",
                hint="both are at least 1",
            )

    @property
    def n_stages(self) -> int:
        """How many stages there are; the last one is for good."""
        has_stages = self.strategy in ("naive", "combined")
        return self.target.length * self.target.nesting if has_stages else 1

    def at(self, stage: int) -> Difficulty:
        """How hard the hardest examples of a stage are."""
        if self.n_stages == 1:
            return self.target
        nesting, length = divmod(min(stage, self.n_stages - 1), self.target.length)
        return Difficulty(length + 1, nesting + 1)

    def draw(self, stage: int, generator: random.Random) -> Difficulty:
        """How hard the next example is to be."""
        if self.strategy == "mix" or (self.strategy == "combined" and generator.random() < _MIXED):
            length, nesting = self.target
            return Difficulty(generator.randint(1, length), generator.randint(1, nesting))
        return self.at(stage)
