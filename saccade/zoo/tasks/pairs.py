"""Source and target sequences as batches: encoded once, bucketed by length, padded in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.tokenizers import Tokenizer
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD, Padded, Ragged, cut_by_tokens


class PairBatch(NamedTuple):
    """A batch of pairs. A decoder reads ``target_in`` and predicts ``target_out``."""

    source: Int[Tensor, "batch source_pos"]
    """Ends in EOS."""
    source_mask: Bool[Tensor, "batch source_pos"]
    target_in: Int[Tensor, "batch pos"]
    """Begins with BOS."""
    target_out: Int[Tensor, "batch pos"]
    """Ends in EOS."""
    target_mask: Bool[Tensor, "batch pos"]
    rows: Int[Tensor, " batch"]
    """The index of each pair, to restore their order."""

    @property
    def n_tokens(self) -> int:
        """Number of target tokens, EOS included."""
        return int(self.target_mask.sum())


@dataclass(frozen=True)
class Pairs:
    """Encoded pairs, ready to be cut into batches."""

    source: Ragged
    """Each row ends in EOS; the tokens before it may be reversed."""
    target: Ragged
    """Each row begins with BOS and ends in EOS."""

    @classmethod
    def of(cls, source: Ragged, target: Ragged, *, is_reversed: bool = False) -> Pairs:
        """Add BOS and EOS.

        Args:
            is_reversed: reverses each source (Sutskever et al., 2014, section 3.3,
                https://arxiv.org/abs/1409.3215). This is done before anything is padded, so that
                the first source word ends up next to the decoder in every row; EOS stays last.
        """
        assert len(source) == len(target), f"{len(source)} sources and {len(target)} targets"
        turned = source.reversed() if is_reversed else source
        return cls(turned.between(last=EOS), target.between(first=BOS, last=EOS))

    def __len__(self) -> int:
        return len(self.source)

    def at_most(self, length: int) -> Pairs:
        """The pairs that have no more than ``length`` ids on either side, symbols not counted."""
        fits = (self.source.lengths <= length + 1) & (self.target.lengths <= length + 2)
        kept = fits.nonzero().flatten()
        return Pairs(self.source.select(kept), self.target.select(kept))

    def batch(self, rows: Int[Tensor, " batch"]) -> PairBatch:
        """The given pairs, padded."""
        source, target = self.source.pad(rows), self.target.pad(rows)
        mask = target.mask[:, 1:]
        target_in = target.ids[:, :-1].where(mask, PAD)  # of a shorter row, EOS would be left
        return PairBatch(source.ids, source.mask, target_in, target.ids[:, 1:], mask, rows)

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Iterator[PairBatch]:
        """All pairs once, in an order that depends only on ``(seed, epoch)``.

        Batches group pairs whose longer sides have similar lengths, and come in random order.
        Lengths are perturbed a little, so that batches differ between epochs.

        Args:
            tokens: maximum number of tokens of a batch on its larger side, padding included; a
                longer pair is a batch of its own.
        """
        generator = generator_of(seed, epoch)
        # On Multi30k 93 % of a batch is no padding; unsorted it would be 50 %, and sorted by both
        # lengths 96 %, but then the same few pairs would always share a batch.
        blur = torch.rand(len(self), generator=generator)
        order = (self._sizes().amax(0) + blur).argsort(stable=True)
        parts = self._cut(order, tokens)
        for part in torch.randperm(len(parts), generator=generator).tolist():
            yield self.batch(parts[part])

    def in_order(self, *, tokens: int) -> Iterator[PairBatch]:
        """All pairs once, the shortest first: for evaluation. ``rows`` has the index of each."""
        for part in self._cut(self._sizes().amax(0).argsort(stable=True), tokens):
            yield self.batch(part)

    def _sizes(self) -> Int[Tensor, "side row"]:
        return torch.stack([self.source.lengths, self.target.lengths - 1])

    def _cut(self, order: Tensor, tokens: int) -> list[Tensor]:
        return cut_by_tokens(self._sizes().amax(0), order, tokens=tokens)


def encode_pairs(
    source: Sequence[str],
    target: Sequence[str],
    *,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    is_reversed: bool = False,
) -> Pairs:
    """Encode sentences and their translations, with one tokenizer or two."""
    targets = (target_tokenizer or tokenizer).encode_all(target)
    return Pairs.of(tokenizer.encode_all(source), targets, is_reversed=is_reversed)


def encode_sources(
    texts: Sequence[str], tokenizer: Tokenizer, *, is_reversed: bool = False
) -> Padded:
    """Sentences to be translated, as the encoder of a `PairBatch` would see them."""
    if not texts:
        raise UsageError("no sentence to encode", hint="give at least one")
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            which = f"sentence {number} of {len(texts)}" if len(texts) > 1 else "the sentence"
            raise UsageError(f"{which} is empty", hint="give it at least one word")
    rows = tokenizer.encode_all(texts)
    turned = rows.reversed() if is_reversed else rows
    return turned.between(last=EOS).pad(torch.arange(len(texts)))
