"""Slots that can be written: erase, then add."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from saccade.attention.unrounded import apply_unrounded


def write_slots(
    memory: Float[Tensor, "batch slot d_slot"],
    weights: Float[Tensor, "batch head slot"],
    *,
    erase: Float[Tensor, "batch head d_slot"],
    add: Float[Tensor, "batch head d_slot"],
) -> Float[Tensor, "batch slot d_slot"]:
    """``M_i <- M_i prod_h (1 - w_hi e_h) + sum_h w_hi a_h``: a new memory, the old one stays.

    Graves et al., 2014 (https://arxiv.org/abs/1410.5401), equations 3 and 4; with several heads all
    erase before any adds, so that their order does not matter.

    >>> memory, here = torch.ones(1, 2, 1), torch.tensor([[[1.0, 0.0]]])
    >>> write_slots(memory, here, erase=torch.ones(1, 1, 1), add=torch.full((1, 1, 1), 5.0))
    tensor([[[5.],
             [1.]]])
    """
    if weights.shape[1] == 1:
        return apply_unrounded(_WriteOne, memory, weights, erase, add)
    kept = (1 - weights[..., None] * erase[:, :, None]).prod(1)  # [batch, slot, d_slot]
    return torch.baddbmm(memory * kept, weights.mT, add)


class _WriteOne(Function):
    """One head, the usual case: ``M + w (a - e M)``, and half of autograd's passes over memory."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, weights: Tensor, erase: Tensor, add: Tensor) -> Tensor:
        ctx.save_for_backward(memory, weights, erase, add)
        return torch.addcmul(memory, weights.mT, torch.addcmul(add, erase, memory, value=-1))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides names
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, ...]:
        (gradient,) = gradients
        memory, weights, erase, add = ctx.saved_tensors
        erased = gradient * memory
        to_weights = add @ gradient.mT - erase @ erased.mT
        to_memory = torch.addcmul(gradient, weights.mT, gradient * erase, value=-1)
        return to_memory, to_weights, -(weights @ erased), weights @ gradient
