"""Sentences that tell of digits one after the other, so many words of each, in the same order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.tasks.symbols import PAD

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class DigitSentences(NamedTuple):
    """Words, and which digit each is about."""

    words: Int[Tensor, "batch pos"]
    about: Int[Tensor, "batch pos"]
    """The digit that a word tells something of; -1 for all other words."""

    @classmethod
    def of(
        cls,
        words: Int[Tensor, "batch digit word"],
        *,
        n_told: Int[Tensor, "batch 1"],
        telling: tuple[int, ...],
    ) -> DigitSentences:
        """The sentences of the first digits; of the others nothing is said.

        Args:
            telling: Which words of a digit tell something of it.

        >>> words = torch.tensor([[[11, 4, 5], [12, 4, 2]], [[13, 4, 2], [14, 4, 2]]])
        >>> made = DigitSentences.of(words, n_told=torch.tensor([[2], [1]]), telling=(0,))
        >>> made.words.tolist()
        [[11, 4, 5, 12, 4, 2], [13, 4, 2, 0, 0, 0]]
        >>> made.about.tolist()
        [[0, -1, -1, 1, -1, -1], [0, -1, -1, -1, -1, -1]]
        """
        digit = torch.arange(words.shape[1])[:, None]  # [digit, 1]
        about = torch.full_like(words, -1)
        about[:, :, list(telling)] = digit
        is_said = digit < n_told[:, :, None]
        return cls(words.where(is_said, PAD).flatten(1), about.where(is_said, -1).flatten(1))
