"""The weights of a head of a Neural Turing Machine in one go, with their gradient by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from saccade.attention.unrounded import apply_unrounded
from saccade.memories.addressing import (
    SHORTEST,
    TINY,
    content_weights,
    locate,
    roll_weights,
)


class HeadNumbers(NamedTuple):
    """What a controller says to its heads, as it comes out of a linear map."""

    key: Float[Tensor, "batch head d_slot"]
    positive: Float[Tensor, "batch head 2"]
    """Strength and sharpness."""
    gate: Float[Tensor, "batch head 1"]
    shift: Float[Tensor, "batch head move"]


def cut(emitted: Float[Tensor, "batch head d_head"], d_slot: int) -> HeadNumbers:
    """The numbers of each head, in the order of `HeadNumbers`."""
    moves = emitted.shape[2] - d_slot - 3
    return HeadNumbers(*emitted.split((d_slot, 2, 1, moves), dim=2))


def move_on(emitted: Float[Tensor, "head d_head"], d_slot: int, *, n_reads: int = 0) -> None:
    """Bend numbers of heads, in place, so that heads which write go on by one slot and stay sharp.

    For what an untrained controller says: of the moves, going on is seven times as likely as any
    other, and a head that writes keeps 95 % of the weights before. The first ``n_reads`` heads
    read: they begin undecided between those weights and what their keys ask for.
    """
    said = cut(emitted[None], d_slot)
    said.shift[..., said.shift.shape[2] // 2 + 1] += 2
    said.positive[:, n_reads:, 1] += 2
    said.gate[:, n_reads:] -= 3


def place_heads(
    emitted: Float[Tensor, "batch head d_head"],
    memory: Float[Tensor, "batch slot d_slot"],
    previous: Float[Tensor, "batch head slot"],
) -> Float[Tensor, "batch head slot"]:
    """Squash what the controller says into range, and go through all stages of `addressing`.

    ``key`` is a tanh, the strength a softplus, the sharpness one more than a softplus, the gate a
    sigmoid and the shift a softmax. While learning the gradient is computed by hand: a step of a
    machine is many operations on small tensors, and autograd's way back has twice as many.
    """
    if torch.is_grad_enabled():
        return apply_unrounded(_Place, emitted, memory, previous)
    said = cut(emitted, memory.shape[2])
    strength, sharpness = functional.softplus(said.positive).unbind(2)
    content = content_weights(said.key.tanh(), memory, strength=strength)
    return locate(
        content,
        previous,
        gate=said.gate[..., 0].sigmoid(),
        shift=said.shift.softmax(-1),
        sharpness=1 + sharpness,
    )


class _Place(Function):
    @staticmethod
    def forward(ctx: Any, emitted: Tensor, memory: Tensor, previous: Tensor) -> Tensor:
        said = cut(emitted, memory.shape[2])
        key, gate, shift = said.key.tanh(), said.gate.sigmoid(), said.shift.softmax(-1)
        positive = functional.softplus(said.positive)
        strength, sharpness = positive[..., :1], 1 + positive[..., 1:]  # [batch, head, 1] each
        of_key = torch.linalg.vector_norm(key, dim=-1, keepdim=True)
        of_slot = torch.linalg.vector_norm(memory, dim=-1)[:, None]
        below = (of_key * of_slot).clamp_(min=SHORTEST)
        cosine = (key @ memory.mT).div_(below)  # [batch, head, slot]
        content = (strength * cosine).softmax(-1)
        moved = roll_weights(torch.lerp(previous, content, gate), shift.shape[2] // 2)
        log = (moved @ shift[..., None])[..., 0].add_(TINY).log_()
        weights = (sharpness * log).softmax(-1)
        ctx.save_for_backward(
            *(emitted, memory, previous, key, gate, shift, strength, sharpness),
            *(of_key, of_slot, below, cosine, content, moved, log, weights),
        )
        return weights

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides names
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (to_weights,) = gradients
        emitted, memory, previous, key, gate, shift, strength, sharpness = ctx.saved_tensors[:8]
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
        # The lengths take part where they were not too short to be divided by.
        to_below = (to_product * cosine).neg_().mul_(below > SHORTEST)
        to_of_key = (to_below * of_slot).sum(-1, keepdim=True)
        to_of_slot = (to_below * of_key).sum(1)[..., None] / of_slot.mT.clamp_min(TINY)
        to_key = torch.baddbmm(key * (to_of_key / of_key.clamp_min(TINY)), to_product, memory)
        to_memory = torch.baddbmm(memory * to_of_slot, to_product.mT, key)
        said = cut(emitted, memory.shape[2])
        to_positive = torch.cat([to_strength, to_sharpness], dim=2) * said.positive.sigmoid()
        to_emitted = [
            torch.ops.aten.tanh_backward(to_key, key),
            to_positive,
            torch.ops.aten.sigmoid_backward(to_gate, gate),
            _through_softmax(to_shift, shift),
        ]
        return torch.cat(to_emitted, dim=2), to_memory, to_previous


def _through_softmax(gradient: Tensor, weights: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(gradient, weights, -1, weights.dtype)


def _rolled_back(gradient: Tensor, shift: Tensor) -> Tensor:
    """Of the weights before they were moved: each move the other way."""
    by_move = (gradient[:, :, None] * shift[..., None]).unbind(2)  # [batch, head, slot] each
    reach = len(by_move) // 2
    total = by_move[reach].clone()
    for by in range(1, reach + 1):
        total += by_move[reach + by].roll(-by, dims=2)
        total += by_move[reach - by].roll(by, dims=2)
    return total
