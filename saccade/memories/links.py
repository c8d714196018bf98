"""In which order slots were written: the DNC's temporal links."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Links(NamedTuple):
    """What is known of the order of writing."""

    matrix: Float[Tensor, "batch slot slot"]
    """``matrix[i, j]``: how far slot i was the next to be written after slot j."""
    precedence: Float[Tensor, "batch slot"]
    """How far each slot was the last to be written."""


class Followed(NamedTuple):
    """Weights one step on and one step back in the order of writing."""

    forward: Float[Tensor, "batch head slot"]
    backward: Float[Tensor, "batch head slot"]


def no_links(like: Float[Tensor, "batch slot d_slot"]) -> Links:
    """Nothing was written yet."""
    batch, slots, _ = like.shape
    return Links(like.new_zeros(batch, slots, slots), like.new_zeros(batch, slots))


def next_links(links: Links, write_weights: Float[Tensor, "batch slot"]) -> Links:
    """Take in one more write.

    Graves et al., 2016 (https://doi.org/10.1038/nature20101), Methods, "temporal memory linkage":
    ``L[i,j] <- (1 - w_i - w_j) L[i,j] + w_i p_j`` off the diagonal, and then
    ``p <- (1 - sum w) p + w``.

    >>> links = no_links(torch.zeros(1, 3, 1))
    >>> for slot in (2, 0):
    ...     links = next_links(links, torch.eye(3)[[slot]])
    >>> links.matrix[0, 0], links.precedence[0]
    (tensor([0., 0., 1.]), tensor([1., 0., 0.]))
    """
    on, after = write_weights[:, :, None], write_weights[:, None]
    kept = links.matrix * (1 - on - after)
    matrix = torch.addcmul(kept, on, links.precedence[:, None])
    itself = torch.eye(matrix.shape[1], dtype=torch.bool, device=matrix.device)
    total = write_weights.sum(1, keepdim=True)
    precedence = (1 - total) * links.precedence + write_weights
    return Links(matrix.masked_fill(itself, 0.0), precedence)


def follow(links: Links, weights: Float[Tensor, "batch head slot"]) -> Followed:
    """Where heads that read here would go to: ``f = L r`` and ``b = L^T r``."""
    return Followed(forward=weights @ links.matrix.mT, backward=weights @ links.matrix)
