"""Counting n-grams, level by level, and discounting the counts after Kneser and Ney."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

NO_ENTRY = -1
"""In place of the number of an n-gram that never occurred."""
# For levels with too few different counts to estimate discounts from: KenLM's own fallback.
FALLBACK = (0.5, 1.0, 1.5)


class Level(NamedTuple):
    """All n-grams of one length, sorted; the one shorter that each begins with is its parent.

    An n-gram is known by its number in this order, so that a number and one symbol more make a key
    of the next level, whatever the length.
    """

    keys: Int[Tensor, " entry"]
    """``parent * d_vocab + symbol``, in ascending order."""
    gain: Float[Tensor, " entry"]
    """``max(count - discount, 0) / count of the context``: its own part of the probability."""
    rest: Float[Tensor, " context"]
    """What the discounts leave over in each context (each n-gram of the level below)."""

    def find(
        self,
        parents: Int[Tensor, "*shape"],
        symbols: Int[Tensor, "*shape"],
        *,
        d_vocab: int,
    ) -> Int[Tensor, "*shape"]:
        """The numbers of the n-grams that continue these parents with these symbols."""
        wanted = parents * d_vocab + symbols
        place = torch.searchsorted(self.keys, wanted).clamp_max(len(self.keys) - 1)
        is_known = (self.keys[place] == wanted) & (parents != NO_ENTRY) & (symbols >= 0)
        return torch.where(is_known, place, NO_ENTRY)


def count_levels(
    text: Int[Tensor, " pos"], *, order: int, d_vocab: int, is_modified: bool
) -> list[Level]:
    """The levels 1 to ``order`` of a text."""
    keys: list[Tensor] = []
    counts: list[Tensor] = []
    numbers = torch.zeros_like(text)  # of the n-gram that begins at each place; first the empty one
    for length in range(1, order + 1):
        longer = numbers[: len(text) - length + 1] * d_vocab + text[length - 1 :]
        found, inverse, n = torch.unique(longer, return_inverse=True, return_counts=True)
        if counts:
            # The level below is counted by how many different symbols stand before its n-grams.
            without_first = torch.empty_like(found).scatter_(
                0, inverse, numbers[1 : len(inverse) + 1]
            )
            counts[-1] = torch.bincount(without_first, minlength=len(keys[-1]))
            counts[-1][numbers[0]] += 1  # the beginning of the text
        keys.append(found)
        counts.append(n)
        numbers = inverse
    n_contexts = [1, *(len(each) for each in keys)]
    return [
        _discounted(key, count, n, d_vocab=d_vocab, is_modified=is_modified)
        for key, count, n in zip(keys, counts, n_contexts, strict=False)
    ]


def discounts_of(counts: Int[Tensor, " entry"], *, is_modified: bool) -> tuple[float, float, float]:
    """What is taken off counts of 1, of 2, and of 3 and more.

    Chen and Goodman, 1998, equations 17 (Ney's) and 26 (modified), from how many n-grams have each
    of the counts 1 to 4.
    """
    n1, n2, n3, n4 = (int((counts == k).sum()) for k in (1, 2, 3, 4))
    if not is_modified:
        one = n1 / (n1 + 2 * n2) if n1 and n2 else FALLBACK[0]
        return one, one, one
    if not (n1 and n2 and n3 and n4):
        return FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    is_sound = all(0 < d < k for k, d in enumerate(found, start=1))
    return found if is_sound else FALLBACK


def _discounted(
    keys: Int[Tensor, " entry"],
    counts: Int[Tensor, " entry"],
    n_contexts: int,
    *,
    d_vocab: int,
    is_modified: bool,
) -> Level:
    by_count = torch.tensor([0.0, *discounts_of(counts, is_modified=is_modified)]).double()
    discount = by_count[counts.clamp_max(3)]
    parent = keys // d_vocab
    total, taken = (
        torch.zeros(n_contexts).double().index_add_(0, parent, each)
        for each in (counts.double(), discount)
    )
    gain = (counts - discount) / total[parent]
    rest = torch.where(total > 0, taken / total, 1.0)  # nothing ever followed the last n-gram
    return Level(keys, gain.float(), rest.float())
