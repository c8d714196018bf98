"""Several models side by side that differ in their first weights; the one that learns best counts.

Sukhbaatar et al., 2015 (https://arxiv.org/abs/1503.08895), section 4.2: on some tasks results vary
much from training to training, so they train ten times and take the one of lowest training error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.zoo.tasks.babi import StoryBatch

# What a system that answers questions about a story gives, whichever it is.


class Answered(NamedTuple):
    """An answer, and which facts were read for it."""

    logits: Float[Tensor, "batch d_vocab"]
    """Of every word as the answer."""
    weights: Float[Tensor, "batch hop fact"]
    """How much each look at the story read of each fact."""


MEMORY = 0.999
"""The training loss of each is a moving average over about a thousand steps."""


class BestOf(nn.Module):
    """Models that are trained on the same batches; answers are those of the lowest training loss.

    They share nothing: the loss is the sum of theirs, and optimisers work number by number. Only
    the gradient's norm, by which it is cut, is that of all of them together.

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
        """Take the training losses of a batch into account."""
        self.losses.lerp_(losses.detach(), 1 - MEMORY)

    @property
    def best(self) -> nn.Module:
        """The one whose training loss is lowest."""
        return self.models[int(self.losses.argmin())]

    def forward(self, batch: StoryBatch) -> Answered:
        """The best one's answers."""
        return self.best(batch)
