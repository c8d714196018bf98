"""Several models with different initial weights; the one with the lowest training loss counts.

Sukhbaatar et al., 2015 (https://arxiv.org/abs/1503.08895), section 4.2: on some tasks results vary
much between runs, so they train ten times and take the run with the lowest training error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.zoo.tasks.babi import StoryBatch

# The output of all models that answer questions about a story.


class Answered(NamedTuple):
    """An answer, and the weights of the facts."""

    logits: Float[Tensor, "batch d_vocab"]
    """Logits of every word as the answer."""
    weights: Float[Tensor, "batch hop fact"]
    """The weight of each fact at each hop."""


MEMORY = 0.999
"""The training loss of each is a moving average over about a thousand steps."""


class BestOf(nn.Module):
    """Models trained on the same batches; the one with the lowest training loss answers.

    They share no weights: the loss is the sum of their losses, and optimisers work elementwise.
    Only gradient clipping uses the norm over all of them.

    >>> from saccade.zoo.models.memn2n import MemN2N
    >>> tries = BestOf([MemN2N(n_words=7) for _ in range(3)])
    >>> tries.note(torch.tensor([2.0, 0.5, 1.0]))
    >>> tries.best is tries.models[1]
    True
    """

    losses: Float[Tensor, " n_tries"]

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.register_buffer("losses", torch.zeros(len(models)))

    def note(self, losses: Float[Tensor, " n_tries"]) -> None:
        """Update the moving averages with the training losses of a batch."""
        self.losses.lerp_(losses.detach(), 1 - MEMORY)

    @property
    def best(self) -> nn.Module:
        """The model with the lowest training loss."""
        return self.models[int(self.losses.argmin())]

    def forward(self, batch: StoryBatch) -> Answered:
        """The answers of the best model."""
        return self.best(batch)
