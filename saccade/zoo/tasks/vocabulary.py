"""Words (or characters, or brackets) and their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.errors import TaskError, UsageError

# The four symbols that every vocabulary begins with, and their ids.

PAD = 0
"""Padding of the rows of a batch; never predicted and never attended."""
BOS = 1
"""Input of a decoder before the first symbol."""
EOS = 2
"""Output of a decoder when it has finished; also the end of a source sentence."""
UNK = 3
"""Stands for any word outside the vocabulary."""

SYMBOLS = ("<pad>", "<s>", "</s>", "<unk>")
"""Their texts; the index in this list is the id."""


# Sequences of unequal length, concatenated in one tensor, padded in one step on demand.


class Padded(NamedTuple):
    """Padded rows; the mask is True for real tokens."""

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
    """Where each row begins; the last value is the number of values."""

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Ragged:
        """Concatenate the rows."""
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
        """The given rows, in this order."""
        lengths = self.lengths[rows]
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        moved = (self.starts[rows] - starts[:-1]).repeat_interleave(lengths)
        return Ragged(self.values[torch.arange(int(starts[-1])) + moved], starts)

    def reversed(self) -> Ragged:
        """Each row reversed."""
        last = (self.starts[:-1] + self.starts[1:] - 1).repeat_interleave(self.lengths)
        return Ragged(self.values[last - torch.arange(len(self.values))], self.starts)

    def between(self, *, first: int | None = None, last: int | None = None) -> Ragged:
        """Each row with one id before it, or after it, or both."""
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
        """The given rows as a batch, padded with PAD to the longest of them."""
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
    """Consecutive rows of ``order``, as many in each part as fit into ``tokens``, padding included.

    A longer row is a part of its own.

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


@dataclass(frozen=True)
class Vocabulary:
    """A list of words; the index is the id. The first four are the symbols.

    >>> words = Vocabulary.build([["the", "cat"], ["the", "mat"]], min_count=2)
    >>> words.encode(["the", "dog"]), len(words)
    ([4, 3], 5)
    >>> words.decode([1, 4, 3, 2, 0])
    ['the', '<unk>']
    """

    words: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if self.words[: len(SYMBOLS)] != SYMBOLS or len(set(self.words)) != len(self.words):
            raise TaskError(
                f"this is no vocabulary: expected {', '.join(SYMBOLS)} and then words, each once",
                hint="the file may have been made for another purpose, or changed by hand",
            )

    @classmethod
    def build(
        cls,
        sequences: Iterable[Iterable[str]],
        *,
        max_size: int | None = None,
        min_count: int = 1,
    ) -> Vocabulary:
        """The most frequent words, ties in alphabetical order.

        Args:
            max_size: maximum size, symbols included.
        """
        counts = Counter(chain.from_iterable(sequences))
        common = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        kept = [word for word, n in common if n >= min_count and word not in SYMBOLS]
        return cls((*SYMBOLS, *kept)[:max_size])

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each word."""
        return {word: place for place, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.ids

    def encode(self, words: Iterable[str]) -> list[int]:
        """The ids of words; UNK for unknown ones."""
        ids = self.ids
        return [ids.get(word, UNK) for word in words]

    def encode_all(self, sequences: Iterable[Iterable[str]]) -> Ragged:
        """The same for many sequences, concatenated."""
        return Ragged.of(self.encode(words) for words in sequences)

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The words up to the first EOS, without BOS and PAD."""
        return [self.words[each] for each in said(ids)]


def said(ids: Sequence[int]) -> list[int]:
    """What comes before the first EOS, without BOS and PAD.

    >>> said([1, 17, 0, 19, 2, 23])
    [17, 19]
    """
    held = list(ids)
    end = held.index(EOS) if EOS in held else len(held)
    return [each for each in held[:end] if each not in (BOS, PAD)]
