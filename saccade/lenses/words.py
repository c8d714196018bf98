"""A part of the vocabulary that stands for all of it, so that sums over words stay affordable."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Words(NamedTuple):
    """Words with the log of the weight that each has in a sum over the vocabulary."""

    ids: Int[Tensor, " word"]
    log_weight: Float[Tensor, " word"]


def sample_words(
    likely: Float[Tensor, " d_vocab"],
    proposal: Float[Tensor, " d_vocab"],
    *,
    n_words: int,
    generator: torch.Generator,
) -> Words:
    """Take the likeliest words for certain, and draw the others by importance.

    Three quarters of ``n_words`` are the words with the largest ``likely`` (weight 1); the rest are
    drawn from ``proposal`` among all other words, each with the weight 1 / (draws * probability).
    For any g, ``sum(exp(log_weight) * g[ids])`` then has the expectation ``sum(g)``: sums over the
    vocabulary are unbiased; a log of such a sum is off by half its relative variance, which the
    certain words keep small.

    >>> p = torch.tensor([0.5, 0.2, 0.2, 0.05, 0.05])
    >>> words = sample_words(p, p, n_words=4, generator=torch.Generator().manual_seed(0))
    >>> words.ids[:3], round(float((words.log_weight.exp() * p[words.ids]).sum()), 6)
    (tensor([0, 1, 2]), 1.0)
    """
    if n_words >= len(likely):
        every = torch.arange(len(likely), device=likely.device)
        return Words(every, torch.zeros(len(likely), device=likely.device))
    n_certain = n_words * 3 // 4
    n_drawn = n_words - n_certain
    certain = likely.topk(n_certain).indices
    rest = torch.ones_like(likely, dtype=torch.bool).index_fill_(0, certain, False).nonzero()[:, 0]
    # The floor keeps a word that the proposal gives nothing within reach.
    chance = proposal[rest].double().clamp_min(1e-12)
    chance = (chance / chance.sum()).cpu()
    drawn = torch.multinomial(chance, n_drawn, replacement=True, generator=generator)
    weight = -(chance[drawn] * n_drawn).log()
    ids = torch.cat([certain, rest[drawn.to(rest.device)]])
    log_weight = torch.cat([torch.zeros(n_certain), weight.float()])
    return Words(ids, log_weight.to(ids.device))
