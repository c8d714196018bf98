"""Answers without reading: the name that occurs most, and the one that occurred last.

Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 3.1 and table 5, "maximum
frequency" and "exclusive frequency"; the last mention is what a hasty reader would say.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.tasks.cloze import FIRST_LABEL, GAP, ClozeBatch

ClozeRule = Literal["max-frequency", "exclusive-frequency", "nearest"]


class ClozeBaseline(nn.Module):
    """Choose a label by a rule; there is nothing to learn.

    - ``max-frequency``: how often a label stands in the document;
    - ``exclusive-frequency``: the same, but never one that stands in the question;
    - ``nearest``: the label that stands last before the gap, in the document or in the question.

    Of labels that occur equally often the one that stands last is chosen.
    """

    def __init__(self, rule: ClozeRule, *, n_labels: int) -> None:
        super().__init__()
        self.rule = rule
        self.n_labels = n_labels

    def forward(self, batch: ClozeBatch) -> Float[Tensor, "batch label"]:
        """A number for each label, the larger the better."""
        before_gap = (batch.question == GAP).cumsum(1) == 0
        words = torch.cat([batch.document, batch.question.where(before_gap, GAP)], dim=1)
        n = words.shape[1]
        at = self.labels(words)  # [batch, words, label]
        last = (at * torch.arange(1, n + 1)[:, None]).amax(1) / (n + 1)  # below 1: breaks ties
        if self.rule == "nearest":
            return last
        counts = self.labels(batch.document).sum(1) + last
        if self.rule == "exclusive-frequency":
            counts = counts - (n + 1) * self.labels(batch.question).amax(1)
        return counts

    def labels(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos label"]:
        """1 where a word is this label, else 0."""
        label = ids - FIRST_LABEL
        is_label: Bool[Tensor, "batch pos"] = (label >= 0) & (label < self.n_labels)
        one_hot = functional.one_hot(label.clamp(0, self.n_labels - 1), self.n_labels)
        return (one_hot * is_label[:, :, None]).float()

    def looks(self, batch: ClozeBatch) -> Float[Tensor, "batch 1 pos"]:
        """Where the chosen label stands in the document; for the nearest, only the last time."""
        logits = self(batch).masked_fill(~batch.candidates, -torch.inf)
        chosen = logits.argmax(-1)[:, None] + FIRST_LABEL
        at = (batch.document == chosen).float()  # [batch, pos]
        if self.rule == "nearest":
            at = at * (at.flip(1).cumsum(1).flip(1) == 1)
        return (at / at.sum(1, keepdim=True).clamp_min(1))[:, None]
