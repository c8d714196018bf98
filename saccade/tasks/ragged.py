"""Sequences of unequal length, held end to end in one tensor, padded in one step when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.tasks.symbols import PAD


class Padded(NamedTuple):
    """Rows of one length; the mask is True where something real stands."""

    ids: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]


@dataclass(frozen=True)
class Ragged:
    """Rows of ids: row ``i`` is ``values[starts[i] : starts[i + 1]]``.

    >>> rows = Ragged.of([[7, 8, 9], [], [5]])
    >>> rows.pad(torch.tensor([2, 0])).ids
    tensor([[5, 0, 0], [7, 8, 9]])
    """

    values: Int[Tensor, " value"]
    starts: Int[Tensor, " row_or_end"]
    """Where each row begins, and at last the number of values."""

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Ragged:
        """Lay the rows end to end."""
        held = list(rows)
        starts = np.zeros(len(held) + 1, np.int64)
        np.cumsum([len(row) for row in held], out=starts[1:])
        values = np.fromiter(chain.from_iterable(held), np.int64, count=int(starts[-1]))
        return cls(torch.from_numpy(values), torch.from_numpy(starts))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Int[Tensor, " row"]:
        """How many ids each row has."""
        return self.starts.diff()

    def row(self, index: int) -> Int[Tensor, " pos"]:
        """One row, as a view."""
        return self.values[int(self.starts[index]) : int(self.starts[index + 1])]

    def select(self, rows: Int[Tensor, " batch"]) -> Ragged:
        """These rows, in this order."""
        lengths = self.lengths[rows]
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        moved = (self.starts[rows] - starts[:-1]).repeat_interleave(lengths)
        return Ragged(self.values[torch.arange(int(starts[-1])) + moved], starts)

    def reversed(self) -> Ragged:
        """Each row back to front."""
        last = (self.starts[:-1] + self.starts[1:] - 1).repeat_interleave(self.lengths)
        return Ragged(self.values[last - torch.arange(len(self.values))], self.starts)

    def between(self, *, first: int | None = None, last: int | None = None) -> Ragged:
        """Each row with one id put before it, or after it, or both."""
        row = torch.arange(len(self)).repeat_interleave(self.lengths)
        before, after = int(first is not None), int(last is not None)
        starts = self.starts + torch.arange(len(self) + 1) * (before + after)
        values = self.values.new_empty(int(starts[-1]))
        values[torch.arange(len(self.values)) + row * (before + after) + before] = self.values
        if first is not None:
            values[starts[:-1]] = first
        if last is not None:
            values[starts[1:] - 1] = last
        return Ragged(values, starts)

    def pad(self, rows: Int[Tensor, " batch"]) -> Padded:
        """These rows side by side, filled up with PAD to the longest of them."""
        lengths = self.lengths[rows]
        place = torch.arange(int(lengths.max()) if len(rows) else 0)
        mask = place < lengths[:, None]  # [batch, pos]
        at = (self.starts[rows, None] + place).where(mask, 0)
        if not len(self.values):  # nothing but empty rows
            return Padded(at, mask)
        return Padded(self.values[at].where(mask, PAD), mask)


def cut_by_tokens(
    sizes: Int[Tensor, " row"], order: Int[Tensor, " row"], *, tokens: int
) -> list[Int[Tensor, " _"]]:
    """Consecutive rows of ``order``, each time as many as fit into ``tokens``, padding included.

    A row that is longer makes a part of its own.

    >>> cut_by_tokens(torch.tensor([3, 1, 2, 9]), torch.tensor([1, 2, 0, 3]), tokens=6)
    [tensor([1, 2]), tensor([0]), tensor([3])]
    """
    if tokens < 1:
        raise UsageError(f"a batch of {tokens} tokens holds nothing", hint="2048 is usual")
    ends, start, widest = [], 0, 0
    for place, size in enumerate(sizes[order].tolist()):
        widest = max(widest, size)
        if place > start and widest * (place + 1 - start) > tokens:
            ends.append(place)
            start, widest = place, size
    return list(order.tensor_split(ends)) if len(order) else []
