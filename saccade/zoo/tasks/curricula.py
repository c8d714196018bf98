"""How hard the next training example is: the four curricula of Learning to Execute."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import torch

from saccade.errors import UsageError

# Random numbers that depend on a seed and a step only.

# torch's generator on the CPU takes the lower 32 bits of a seed and drops the others, so both must
# fit into them. Multiples of 2^32 over the golden ratio lie far apart, which keeps the steps of one
# seed clear of those of another.
_SPREAD = 2_654_435_769


def generator_of(seed: int, step: int) -> torch.Generator:
    """The source of randomness of one step of one seed.

    Whatever was drawn before does not matter, so a training that is taken up again, or split among
    processes, sees the same data.

    >>> draws = [torch.rand((), generator=generator_of(3, 5)).item() for _ in range(2)]
    >>> draws[0] == draws[1]
    True
    """
    return torch.Generator().manual_seed((seed * _SPREAD + step) % 2**32)


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
