"""The n-gram language model with Kneser-Ney smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.zoo.models.language_model import LanguageModel, Predicted

# Counting n-grams level by level, with Kneser-Ney discounts.

NO_ENTRY = -1
"""In place of the index of an n-gram that never occurred."""
# For levels with too few different counts to estimate discounts: KenLM's fallback.
FALLBACK = (0.5, 1.0, 1.5)


class Level(NamedTuple):
    """All n-grams of one length, sorted; the prefix of each n-gram is its parent.

    An n-gram is identified by its index in this order, so an index and one more symbol make a key
    of the next level, at any length.
    """

    keys: Int[Tensor, " entry"]
    """``parent * d_vocab + symbol``, in ascending order."""
    gain: Float[Tensor, " entry"]
    """``max(count - discount, 0) / count of the context``: this level's part of the probability."""
    rest: Float[Tensor, " context"]
    """The discounted mass of each context (each n-gram of the level below)."""

    def find(
        self,
        parents: Int[Tensor, "*shape"],
        symbols: Int[Tensor, "*shape"],
        *,
        d_vocab: int,
    ) -> Int[Tensor, "*shape"]:
        """The indices of the n-grams that continue these parents with these symbols."""
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
    numbers = torch.zeros_like(text)  # of the n-gram at each position; first the empty one
    for length in range(1, order + 1):
        longer = numbers[: len(text) - length + 1] * d_vocab + text[length - 1 :]
        found, inverse, n = torch.unique(longer, return_inverse=True, return_counts=True)
        if counts:
            # The level below is counted by the number of different symbols before its n-grams.
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
    """The discounts of counts of 1, of 2, and of 3 and more.

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


NOTHING = -1
"""Marks an empty position of a history."""


class NgramLanguageModel(LanguageModel):
    """Interpolated Kneser-Ney: discounted counts, interpolated with the shorter context.

    Kneser and Ney, 1995, in the interpolated form of Chen and Goodman, 1998 ("An empirical study of
    smoothing techniques for language modeling", equations 24 to 27)::

        p_k(w | c) = max(count(c w) - D, 0) / count(c) + rest(c) * p_(k-1)(w | c less its first)

    Only the longest n-grams are counted as they occur; for the others ``count`` is the number of
    different symbols seen before them: "Francisco" is frequent, but follows hardly anything but
    "San". The recursion ends at the uniform distribution over all symbols. There is one discount D
    per level (Ney), or with ``is_modified`` one each for counts of 1, 2 and more (Chen and
    Goodman).

    The text is one stream, and its beginning counts as a symbol.

    The n-grams are stored as the levels of a trie (`Level`), so that a whole text is scored by one
    search per level; Python loops only over levels.

    >>> model = NgramLanguageModel.count(torch.tensor([4, 5, 4, 5, 4, 6]), order=2, d_vocab=7)
    >>> model.log_probs_of(torch.tensor([[4, 5, 4]])).exp()[0, 2] > 0.5  # what followed a 5
    tensor(True)
    """

    def __init__(self, *, d_vocab: int, sizes: Sequence[int]) -> None:
        """An empty model, to be filled with weights.

        Args:
            sizes: Number of different n-grams of each length, 1 first.
        """
        super().__init__()
        self.d_vocab = d_vocab
        self.sizes = tuple(sizes)
        self.order = len(self.sizes)
        for level, (n, n_contexts) in enumerate(zip(self.sizes, (1, *self.sizes), strict=False)):
            self.register_buffer(f"keys_{level}", torch.zeros(n, dtype=torch.long))
            self.register_buffer(f"gain_{level}", torch.zeros(n))
            self.register_buffer(f"rest_{level}", torch.ones(n_contexts))

    @classmethod
    def count(
        cls, text: Int[Tensor, " pos"], *, order: int, d_vocab: int, is_modified: bool = True
    ) -> NgramLanguageModel:
        """Count the n-grams of a text up to the length ``order``."""
        if order < 1 or len(text) <= order:
            raise UsageError(
                f"a text of {len(text)} symbols has no {order}-grams to count",
                hint="give an order of at least 1, and a longer text",
            )
        levels = count_levels(text, order=order, d_vocab=d_vocab, is_modified=is_modified)
        model = cls(d_vocab=d_vocab, sizes=[len(level.keys) for level in levels])
        for number, level in enumerate(levels):
            for name, value in level._asdict().items():
                model.get_buffer(f"{name}_{number}").copy_(value)
        return model

    def level(self, number: int) -> Level:
        """The n-grams of ``number`` + 1 symbols."""
        return Level(*(self.get_buffer(f"{name}_{number}") for name in Level._fields))

    def begin(self, n: int) -> Int[Tensor, "batch history"]:
        """The empty history."""
        return torch.full((n, self.order - 1), NOTHING, device=self.get_buffer("keys_0").device)

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        state: Int[Tensor, "batch history"] | None = None,
    ) -> Predicted:
        """Log-probabilities of all symbols after each symbol."""
        read = torch.cat([self.begin(len(tokens)) if state is None else state, tokens], dim=1)
        n_new = tokens.shape[1]
        probs = torch.full((tokens.numel(), self.d_vocab), 1 / self.d_vocab, device=tokens.device)
        for number, entries in enumerate(self._entries(read)[: self.order]):
            probs = self._widened(probs, number, entries[:, -n_new:].flatten())
        logits = probs.log().view(*tokens.shape, self.d_vocab)
        return Predicted(logits, read[:, read.shape[1] - (self.order - 1) :])

    def log_probs_of(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos"]:
        """Log-probability of each symbol of a text, given all symbols before it."""
        return self.parts_of(tokens).sum(-1).log()

    def parts_of(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos level"]:
        """What each level contributes to the probability of each symbol, the shortest first.

        Level 0 is the uniform distribution, level k the n-grams of k symbols.
        """
        entries = self._entries(tokens)
        shape = (*tokens.shape, 1)
        parts = torch.full(shape, 1 / self.d_vocab, device=tokens.device)
        for number in range(self.order):
            level = self.level(number)
            context = torch.nn.functional.pad(entries[number][:, :-1], (1, 0), value=NO_ENTRY)
            if number == 0:
                context = torch.zeros_like(context)  # at the start of a text the context is empty
            rest = torch.where(context == NO_ENTRY, 1.0, level.rest[context.clamp_min(0)])
            found = entries[number + 1]
            gain = torch.where(found == NO_ENTRY, 0.0, level.gain[found.clamp_min(0)])
            parts = torch.cat([parts * rest[..., None], gain[..., None]], dim=-1)
        return parts

    def _entries(self, tokens: Int[Tensor, "batch pos"]) -> list[Int[Tensor, "batch pos"]]:
        """For each length from 0: the n-gram of this length that ends at each position."""
        entries = [torch.zeros_like(tokens)]
        for number in range(self.order):
            context = entries[-1]
            if number > 0:
                context = torch.nn.functional.pad(context[:, :-1], (1, 0), value=NO_ENTRY)
            entries.append(self.level(number).find(context, tokens, d_vocab=self.d_vocab))
        return entries

    def _widened(
        self, probs: Float[Tensor, "row d_vocab"], number: int, context: Int[Tensor, " row"]
    ) -> Float[Tensor, "row d_vocab"]:
        """The probabilities with a context longer by one symbol."""
        level = self.level(number)
        rows = (context != NO_ENTRY).nonzero()[:, 0]
        known = context[rows]
        begin, end = (
            torch.searchsorted(level.keys, (known + offset) * self.d_vocab) for offset in (0, 1)
        )
        n = end - begin  # number of different symbols after each context
        first = n.cumsum(0) - n
        at = torch.arange(int(n.sum()), device=n.device) + (begin - first).repeat_interleave(n)
        probs = probs.index_copy(0, rows, probs[rows] * level.rest[known, None])
        word = level.keys[at] % self.d_vocab
        return probs.index_put((rows.repeat_interleave(n), word), level.gain[at], accumulate=True)
