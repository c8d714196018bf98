"""Images and sentences about them: what a captioner is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.tasks.ragged import Ragged
from saccade.tasks.symbols import BOS, EOS, PAD
from saccade.tasks.vocabulary import Vocabulary


class Sentences(NamedTuple):
    """Sentences side by side. A decoder reads ``target_in`` and is to say ``target_out``."""

    target_in: Int[Tensor, "batch pos"]
    """Begins with BOS."""
    target_out: Int[Tensor, "batch pos"]
    """Ends in EOS."""
    target_mask: Bool[Tensor, "batch pos"]

    @classmethod
    def of(cls, target_out: Int[Tensor, "batch pos"]) -> Sentences:
        """From what is to be said, padded with PAD.

        >>> Sentences.of(torch.tensor([[7, 2, 0], [7, 8, 2]])).target_in
        tensor([[1, 7, 0], [1, 7, 8]])
        """
        mask = target_out != PAD
        before = torch.cat([torch.full_like(target_out[:, :1], BOS), target_out[:, :-1]], dim=1)
        return cls(before.where(mask, PAD), target_out, mask)

    @classmethod
    def encode(cls, texts: Sequence[Sequence[str]], vocabulary: Vocabulary) -> Sentences:
        """From sentences in words."""
        rows = Ragged.of([*vocabulary.encode(words), EOS] for words in texts)
        return cls.of(rows.pad(torch.arange(len(rows))).ids)

    def select(self, rows: Int[Tensor, " row"]) -> Sentences:
        """These sentences, no wider than the longest of them."""
        mask = self.target_mask[rows]
        width = int(mask.sum(1).max())
        return Sentences(
            self.target_in[rows, :width], self.target_out[rows, :width], mask[:, :width]
        )


class CaptionBatch(NamedTuple):
    """Images, or maps of features that were made of them, and a sentence about each."""

    images: Float[Tensor, "batch channel height width"]
    sentences: Sentences
