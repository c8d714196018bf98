"""Ranking: what is right should score higher than everything else, by a margin."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def margin_ranking(
    scores: Float[Tensor, "*at candidate"],
    right: Int[Tensor, "*at"],
    mask: Bool[Tensor, "*at candidate"] | None = None,
    *,
    margin: float = 0.1,
) -> Float[Tensor, "*at"]:
    """``sum over wrong f' of max(0, margin - s(f) + s(f'))``.

    Weston et al., 2015 (https://arxiv.org/abs/1410.3916), section 3.1, equations 6 to 8, with their
    margin of 0.1. They draw one wrong candidate at a time; we take all of them.

    Args:
        mask: True where a candidate counts; all of them unless given.

    >>> margin_ranking(torch.tensor([[1.0, 0.95, 0.0]]), torch.tensor([0]))
    tensor([0.0500])
    """
    own = scores.gather(-1, right[..., None])
    short = (margin - own + scores).relu().scatter(-1, right[..., None], 0.0)
    return (short if mask is None else torch.where(mask, short, 0.0)).sum(-1)
