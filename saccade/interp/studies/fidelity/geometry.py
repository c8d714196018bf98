"""Comparison of two changes of a prediction: divergence, alignment, rank correlations.

Sums over the vocabulary are taken over sampled tokens (`saccade.interp.lenses.held_out`), each with
the log of its weight in the sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

BOOTSTRAPS = 1000


class Estimate(NamedTuple):
    """A metric with its 95 % bootstrap interval over the windows of text."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def short(self) -> str:
        """With half the width of the interval, for tables with many columns.

        >>> Estimate(0.5, 0.41, 0.61).short()
        '0.50 ±0.10'
        """
        return f"{self.value:.2f} ±{(self.high - self.low) / 2:.2f}"


def divergence(
    before: Float[Tensor, "*batch token"],
    after: Float[Tensor, "*#batch token"],
    log_weight: Float[Tensor, " token"],
) -> Float[Tensor, "*batch"]:
    """KL(softmax before || softmax after), in nats.

    With x the change of the logits it is ``log E[exp x] - E[x]`` under the distribution before, so
    that an estimate from some of the tokens is never negative.

    >>> logits = torch.tensor([0.5, 0.25, 0.25]).log()
    >>> float(divergence(logits, torch.zeros(3), torch.zeros(3)))  # log 3 less the entropy
    0.0588...
    """
    log_p = (before + log_weight).log_softmax(-1)
    moved = after - before
    return (log_p + moved).logsumexp(-1) - (log_p.exp() * moved).sum(-1)


class Agreement(NamedTuple):
    """Weighted inner products of a lens's change (s) and the model's (t), one per position."""

    both: Float[Tensor, "*batch"]
    lens: Float[Tensor, "*batch"]
    model: Float[Tensor, "*batch"]

    def cosine(self) -> Float[Tensor, "*batch"]:
        """1 where both changes are proportional; 0 where either is zero."""
        length = (self.lens * self.model).sqrt()
        return torch.where(length > 0, self.both / length.clamp_min(1e-30), 0.0)


def agreement(
    lens_change: Float[Tensor, "*batch token"],
    before: Float[Tensor, "*#batch token"],
    after: Float[Tensor, "*#batch token"],
    *,
    log_weight: Float[Tensor, " token"],
) -> Agreement:
    """How far a lens's change of logits points in the direction of the model's.

    Belrose et al., 2023 (https://arxiv.org/abs/2303.08112), stimulus-response alignment: the inner
    product of Aitchison geometry, in which a prediction is given by its log-ratios and every
    token counts by ``w = (p + p') / 2``, the mean of the model's probability before and after.

    Args:
        lens_change: the change of the lens's logits.
        before: the model's logits before the intervention; ``after``, with it.
    """
    p, q = ((logits + log_weight).softmax(-1) for logits in (before, after))
    w = (p + q) / 2
    s = lens_change - (w * lens_change).sum(-1, keepdim=True)
    t = after - before
    t = t - (w * t).sum(-1, keepdim=True)
    return Agreement((w * s * t).sum(-1), (w * s * s).sum(-1), (w * t * t).sum(-1))


def spearman(a: Float[Tensor, "*batch n"], b: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Rank correlation along the last axis; ties share a rank. 0 where all values are equal.

    From SciPy's ranks: its `spearmanr` correlates every row with every other, and
    tests for significance.

    >>> spearman(torch.tensor([1.0, 5.0, 9.0]), torch.tensor([0.1, 0.3, 0.2]))
    tensor(0.5000)
    """
    from scipy.stats import rankdata

    ranks = [torch.from_numpy(rankdata(each.cpu().numpy(), axis=-1)) for each in (a, b)]
    x, y = (each - each.mean(-1, keepdim=True) for each in ranks)
    length = (x.square().sum(-1) * y.square().sum(-1)).sqrt()
    return ((x * y).sum(-1) / length.clamp_min(1e-30)).to(a)


def partial_spearman(
    a: Float[Tensor, "*batch n"], b: Float[Tensor, "*batch n"], given: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch"]:
    """Rank correlation of a and b when their rank correlations with a third are partialled out.

    The correlation of what is left of the ranks of a and b after a linear regression on the ranks
    of ``given``: 0 where either has nothing left. SciPy has no partial correlation.

    >>> size = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> a, b = torch.tensor([2.0, 1.0, 3.0, 5.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0, 5.0])
    >>> spearman(a, b), partial_spearman(a, b, size)
    (tensor(0.6000), tensor(-0.4588))
    """
    ab, ag, bg = spearman(a, b), spearman(a, given), spearman(b, given)
    left = (1 - ag.square()).clamp_min(0) * (1 - bg.square()).clamp_min(0)
    # Rounding leaves 1e-7 of a correlation of 1; less than that is nothing.
    partial = (ab - ag * bg) / left.sqrt().clamp_min(1e-30)
    return torch.where(left > 1e-6, partial.clamp(-1, 1), 0.0)


def resampled(n: int, *, seed: int = 0) -> Float[Tensor, "bootstrap n"]:
    """How often each of n windows is drawn: once each in the first row, then at random.

    Where we differ from `scipy.stats.bootstrap`: the draws of a seed are the same for every head,
    lens and measure, so that their differences can be resampled too; and a statistic of draws is a
    product with these counts, where SciPy would keep all values of every draw in memory.
    """
    drawn = torch.randint(n, (BOOTSTRAPS, n), generator=torch.Generator().manual_seed(seed))
    counts = torch.zeros(BOOTSTRAPS, n).scatter_add_(1, drawn, torch.ones(BOOTSTRAPS, n))
    return torch.cat([torch.ones(1, n), counts])


def resampled_means(values: Float[Tensor, "window head"]) -> Float[Tensor, "bootstrap head"]:
    """The mean over all windows, then over windows drawn at random."""
    counts = resampled(len(values)).to(values)
    return counts @ values / counts.sum(1, keepdim=True)


def estimate(values: Float[Tensor, " bootstrap"]) -> Estimate:
    """The first value, with the middle 95 % of the others as its interval."""
    low, high = values[1:].quantile(torch.tensor([0.025, 0.975]).to(values)).tolist()
    return Estimate(float(values[0]), low, high)


def plain(found: Any) -> Any:
    """An estimate or a number for JSON, to six digits."""
    if isinstance(found, Estimate):
        return {name: plain(value) for name, value in found._asdict().items()}
    return float(f"{found:.6g}") if isinstance(found, float) else found
