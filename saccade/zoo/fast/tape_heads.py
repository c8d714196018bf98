"""Addressing and writing of Neural Turing Machine heads, with hand-written gradients.

A step is many operations on small tensors, and autograd's backward pass has twice as many.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from saccade.zoo.fast.forms import apply_upcast


def place_heads_at_once(
    key: Float[Tensor, "batch head d_slot"],
    positive: Float[Tensor, "batch head 2"],
    gate: Float[Tensor, "batch head 1"],
    shift: Float[Tensor, "batch head move"],
    memory: Float[Tensor, "batch slot d_slot"],
    previous: Float[Tensor, "batch head slot"],
    *,
    shortest: float,
    tiny: float,
) -> Float[Tensor, "batch head slot"]:
    """All stages from the controller's outputs to the weights of the heads.

    Plain form: `saccade.zoo.memories.addressing.place_heads`.

    Args:
        shortest: The smallest product of two norms to divide by.
        tiny: The smallest weight.
    """
    return apply_upcast(_Place, key, positive, gate, shift, memory, previous, shortest, tiny)


class _Place(Function):
    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917  autograd takes tensors one by one
        ctx: Any,
        key: Tensor,
        positive: Tensor,
        gate: Tensor,
        shift: Tensor,
        memory: Tensor,
        previous: Tensor,
        shortest: float,
        tiny: float,
    ) -> Tensor:
        ctx.shortest, ctx.tiny = shortest, tiny
        key, gate, shift = key.tanh(), gate.sigmoid(), shift.softmax(-1)
        slope, positive = positive.sigmoid(), functional.softplus(positive)
        strength, sharpness = positive[..., :1], 1 + positive[..., 1:]  # [batch, head, 1] each
        of_key = torch.linalg.vector_norm(key, dim=-1, keepdim=True)
        of_slot = torch.linalg.vector_norm(memory, dim=-1)[:, None]
        below = (of_key * of_slot).clamp_(min=shortest)
        cosine = (key @ memory.mT).div_(below)  # [batch, head, slot]
        content = (strength * cosine).softmax(-1)
        moved = _rolled(torch.lerp(previous, content, gate), shift.shape[2] // 2)
        log = (moved @ shift[..., None])[..., 0].add_(tiny).log_()
        weights = (sharpness * log).softmax(-1)
        ctx.save_for_backward(
            *(slope, memory, previous, key, gate, shift, strength, sharpness),
            *(of_key, of_slot, below, cosine, content, moved, log, weights),
        )
        return weights

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides names
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        (to_weights,) = gradients
        slope, memory, previous, key, gate, shift, strength, sharpness = ctx.saved_tensors[:8]
        of_key, of_slot, below, cosine, content, moved, log, weights = ctx.saved_tensors[8:]
        to_power = _through_softmax(to_weights, weights)
        to_sharpness = (to_power * log).sum(-1, keepdim=True)
        to_moved = to_power.mul_(sharpness).div_(log.exp())  # [batch, head, slot]
        to_shift = (to_moved[:, :, None] @ moved)[:, :, 0]
        to_mixed = _rolled_back(to_moved, shift)
        to_gate = (to_mixed * (content - previous)).sum(-1, keepdim=True)
        to_content = to_mixed * gate
        to_previous = to_mixed.sub_(to_content)
        to_scores = _through_softmax(to_content, content)
        to_strength = (to_scores * cosine).sum(-1, keepdim=True)
        to_product = to_scores.mul_(strength).div_(below)
        # The norms have a gradient where they were not clamped.
        to_below = (to_product * cosine).neg_().mul_(below > ctx.shortest)
        to_of_key = (to_below * of_slot).sum(-1, keepdim=True)
        to_of_slot = (to_below * of_key).sum(1)[..., None] / of_slot.mT.clamp_min(ctx.tiny)
        to_key = torch.baddbmm(key * (to_of_key / of_key.clamp_min(ctx.tiny)), to_product, memory)
        to_memory = torch.baddbmm(memory * to_of_slot, to_product.mT, key)
        return (
            torch.ops.aten.tanh_backward(to_key, key),
            torch.cat([to_strength, to_sharpness], dim=2).mul_(slope),
            torch.ops.aten.sigmoid_backward(to_gate, gate),
            _through_softmax(to_shift, shift),
            to_memory,
            to_previous,
            None,
            None,
        )


def _through_softmax(gradient: Tensor, weights: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(gradient, weights, -1, weights.dtype)


def _rolled(weights: Tensor, reach: int) -> Tensor:
    """The weights after every shift, from ``-reach`` to ``reach`` slots."""
    moved = [weights.roll(by, dims=2) if by else weights for by in range(-reach, reach + 1)]
    return torch.stack(moved, dim=-1)


def _rolled_back(gradient: Tensor, shift: Tensor) -> Tensor:
    """The gradient of the weights before the shift: each shift reversed."""
    by_move = (gradient[:, :, None] * shift[..., None]).unbind(2)  # [batch, head, slot] each
    reach = len(by_move) // 2
    total = by_move[reach].clone()
    for by in range(1, reach + 1):
        total += by_move[reach + by].roll(-by, dims=2)
        total += by_move[reach - by].roll(by, dims=2)
    return total


def write_one_head(
    memory: Float[Tensor, "batch slot d_slot"],
    weights: Float[Tensor, "batch 1 slot"],
    *,
    erase: Float[Tensor, "batch 1 d_slot"],
    add: Float[Tensor, "batch 1 d_slot"],
) -> Float[Tensor, "batch slot d_slot"]:
    """Write with one head, ``M + w (a - e M)``, in half of autograd's passes over memory.

    Plain form: `saccade.zoo.memories.addressing.write_slots`.
    """
    return apply_upcast(_WriteOne, memory, weights, erase, add)


class _WriteOne(Function):
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
