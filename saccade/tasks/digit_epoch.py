"""The batches of an epoch of things that are made of a few digits each: scenes, films."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.tasks.mnist import Digits
from saccade.tasks.step_seed import generator_of

Made = TypeVar("Made")


class DigitEpoch(Sequence[Made], ABC, Generic[Made]):
    """Every digit is the first one of something once; others are drawn to it.

    A batch depends on seed, epoch and its number alone, and is made when it is asked for.

    Args:
        size: Pixels of the side of a scene or frame.
        in_order: The digits as they are stored, for validation and test.
    """

    n_together: ClassVar[int]
    """Digits that a scene or film may have."""
    smallest: ClassVar[int]
    """Pixels of the side at least."""
    why_so_large: ClassVar[str]
    """What the room is for."""

    def __init__(
        self,
        digits: Digits,
        *,
        size: int,
        batch: int,
        seed: int,
        epoch: int = 0,
        in_order: bool = False,
    ) -> None:
        if size < self.smallest:
            raise UsageError(
                f"expected a side of {self.smallest} pixels or more, got {size}",
                hint=self.why_so_large,
            )
        self.digits, self.size, self.seed = digits, size, seed
        n = len(digits.labels)
        shuffled = torch.randperm(n, generator=generator_of(seed, epoch))
        self.parts = (torch.arange(n) if in_order else shuffled).split(batch)
        self.first = 2**20 + epoch * len(self.parts)  # after the numbers of all epochs

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.parts)

    def __getitem__(self, number: int) -> Made:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        if not 0 <= number < len(self.parts):
            raise IndexError(number)
        generator = generator_of(self.seed, self.first + number)
        first = self.parts[number][:, None]
        shape = (len(first), self.n_together - 1)
        others = torch.randint(0, len(self.digits.labels), shape, generator=generator)
        return self.make(torch.cat([first, others], 1), generator)

    @abstractmethod
    def make(self, chosen: Int[Tensor, "batch digit"], generator: torch.Generator) -> Made:
        """A batch of these digits."""
