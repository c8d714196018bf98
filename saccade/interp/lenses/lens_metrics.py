"""Metrics at a position: the lens's logits compared with the model's own prediction.

Vocabularies of a quarter of a million tokens make positions x heads x vocabulary too large for
memory, and even positions x vocabulary is a gigabyte. So every sum is taken over one block of the
vocabulary at a time, with the running maximum that a softmax needs ("online softmax", Milakov and
Gimelshein, 2018, https://arxiv.org/abs/1805.02867); the metrics are those of the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

MEASURES = ("kl", "cross_entropy", "top1", "top10")
TEN = 10


def token_blocks(d_vocab: int, size: int) -> list[range]:
    """The vocabulary in blocks of at most ``size`` tokens.

    >>> token_blocks(10, 4)
    [range(0, 4), range(4, 8), range(8, 10)]
    """
    return [range(start, min(start + size, d_vocab)) for start in range(0, d_vocab, size)]


class RunningSoftmax:
    """The maximum and the sum of exponentials of logits that arrive in blocks.

    It can also accumulate other sums weighted by the same exponentials.

    >>> logits = torch.tensor([[1.0, 2.0, 3.0]])
    >>> running = RunningSoftmax((1,), device=logits.device)
    >>> for block in (logits[:, :2], logits[:, 2:]):
    ...     _ = running.add(block)
    >>> bool(torch.isclose(running.log_total, logits.double().logsumexp(-1)))
    True
    """

    def __init__(self, shape: Sequence[int], *, device: torch.device, n_weighted: int = 0) -> None:
        # Not minus infinity: the difference of two would be NaN.
        lowest = torch.finfo(torch.float32).min
        self.highest = torch.full(tuple(shape), lowest, device=device)
        self.total = torch.zeros(tuple(shape), dtype=torch.float64, device=device)
        self.weighted = [torch.zeros_like(self.total) for _ in range(n_weighted)]

    def add(
        self, logits: Float[Tensor, "*batch token"], *weighted: Float[Tensor, "*#batch token"]
    ) -> Float[Tensor, "*batch"]:
        """Add a block, and values to sum weighted by its exponentials; returns its maximum."""
        block_highest = logits.amax(-1)
        highest = torch.maximum(self.highest, block_highest)
        shrink = (self.highest.double() - highest).exp()
        powers = (logits - highest[..., None]).exp_()
        self.total = self.total * shrink + powers.sum(-1)
        self.weighted = [
            old * shrink + (powers * new).sum(-1)
            for old, new in zip(self.weighted, weighted, strict=True)
        ]
        self.highest = highest
        return block_highest

    @property
    def log_total(self) -> Float[Tensor, "*batch"]:
        """The log of the sum of all exponentials, in float64."""
        return self.highest + self.total.log()


@dataclass(frozen=True)
class Predicted:
    """The model's own prediction at some positions."""

    model: LanguageModel
    final: Float[Tensor, "n d_model"]
    log_total: Float[Tensor, " n"]
    negentropy: Float[Tensor, " n"]
    top: Int[Tensor, " n"]
    next_ids: Int[Tensor, " n"]

    def probs(self, tokens: Int[Tensor, " token"]) -> Float[Tensor, "n token"]:
        """The model's probabilities of some tokens, recomputed: all would not fit in memory."""
        logits = self.model.unembedding.logits(self.final, tokens=tokens).float()
        return (logits - self.log_total[:, None].float()).exp_()


@torch.no_grad()
def predict(
    model: LanguageModel,
    final: Float[Tensor, "n d_model"],
    next_ids: Int[Tensor, " n"],
    baseline: Float[Tensor, " d_vocab"],
    blocks: Sequence[range],
) -> tuple[Predicted, Float[Tensor, "3"]]:
    """The model's prediction, and sums of: KL of the baseline lens, its surprise, the model's."""
    device = model.unembedding.weight.device
    final, next_ids = final.to(device), next_ids.to(device)
    # Over so many tokens the error of float32 would reach the last reported digit.
    always = baseline.to(device, torch.float64).log_softmax(-1).float()
    running = RunningSoftmax((len(final),), device=device, n_weighted=2)
    top = torch.zeros_like(next_ids)
    of_next = torch.zeros(len(final), device=device)
    for block in blocks:
        tokens = torch.arange(block.start, block.stop, device=device)
        logits = model.unembedding.logits(final, tokens=tokens).float()  # [n, token]
        before = running.highest
        is_higher = running.add(logits, logits, always[tokens]) > before
        top = torch.where(is_higher, logits.argmax(-1) + block.start, top)
        here = _inside(next_ids, block)
        of_next[here] = logits[here, next_ids[here] - block.start]
    log_total = running.log_total
    own_log, baseline_log = (each / running.total for each in running.weighted)
    negentropy = own_log - log_total
    own = torch.stack(
        [
            (negentropy - baseline_log).sum(),
            -always[next_ids].double().sum(),
            (log_total - of_next).sum(),
        ]
    )
    return Predicted(model, final, log_total, negentropy, top, next_ids), own.cpu()


class Tally:
    """The metrics of the lenses of one layer, while their logits arrive in blocks of tokens."""

    def __init__(self, predicted: Predicted, n_heads: int) -> None:
        device = predicted.final.device
        shape = (len(predicted.final), n_heads)
        self.predicted = predicted
        self.softmax = RunningSoftmax(shape, device=device)
        self.expected = torch.zeros(shape, dtype=torch.float64, device=device)
        self.of_next = torch.zeros(shape, device=device)
        self.best = torch.full((*shape, TEN), -torch.inf, device=device)
        self.best_ids = torch.full((*shape, TEN), -1, dtype=torch.long, device=device)

    def add(
        self,
        logits: Float[Tensor, "n head token"],
        probs: Float[Tensor, "n token"],
        block: range,
    ) -> None:
        """Add the logits of a block of tokens, and the model's probabilities of them."""
        highest = self.softmax.add(logits)
        # A product and a sum: einsum and bmm take four times as long for a matrix and a vector.
        self.expected += (logits * probs[:, None]).sum(-1)
        next_ids = self.predicted.next_ids
        here = _inside(next_ids, block)
        self.of_next[here] = logits[here, :, next_ids[here] - block.start]
        self._keep_best(logits, highest, block)

    def _keep_best(self, logits: Tensor, highest: Tensor, block: range) -> None:
        # Few blocks contain a token in the top ten of a position, and sorting is slow.
        at = (highest > self.best[..., -1]).nonzero(as_tuple=True)
        found = logits[at].topk(min(TEN, len(block)))  # [changed, 10]
        values = torch.cat([self.best[at], found.values], dim=-1)
        ids = torch.cat([self.best_ids[at], found.indices + block.start], dim=-1)
        order = values.topk(TEN).indices
        self.best[at] = values.gather(-1, order)
        self.best_ids[at] = ids.gather(-1, order)

    def sums(self) -> Float[Tensor, "measure head"]:
        """Sums over positions of each of `MEASURES`, after all tokens were added."""
        total = self.softmax.log_total
        is_models = self.best_ids == self.predicted.top[:, None, None]
        measures = (
            # KL = sum p log p - sum p (logit - total), so that no tensor as large as the
            # logits is created.
            self.predicted.negentropy[:, None] - self.expected + total,
            total - self.of_next,
            is_models[..., 0],
            is_models.any(-1),
        )
        return torch.stack([measure.double().sum(0) for measure in measures]).cpu()


def _inside(ids: Int[Tensor, " n"], block: range) -> Int[Tensor, " inside"]:
    """The positions whose token is in the block."""
    return ((ids >= block.start) & (ids < block.stop)).nonzero()[:, 0]
