"""Where a head of a Neural Turing Machine reads and writes: by content, then moved along the tape.

Graves et al., 2014 (https://arxiv.org/abs/1410.5401), section 3.3, figure 2: the weights of a head
go through four stages, and each is a function here::

    content -> interpolate with those of the step before -> shift -> sharpen
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# The least product of two lengths to divide by: a slot that was never written has length 0, and
# the slope of x/|x| is infinite there. One silent slot is enough to blow up a gradient.
SHORTEST = 1e-2
# The least weight, so that its logarithm exists.
TINY = 1e-16


def cosine_similarity(
    keys: Float[Tensor, "batch head d_slot"], memory: Float[Tensor, "batch slot d_slot"]
) -> Float[Tensor, "batch head slot"]:
    """``k . M_i / (|k| |M_i|)`` of every key with every slot: the paper's equation 6.

    `saccade.attention.CosineScore` scales its keys to length 1 once for many queries; a memory that
    is written at every step would have to be copied for that, so here the products are divided.

    >>> cosine_similarity(torch.tensor([[[2.0, 0.0]]]), torch.tensor([[[3.0, 0.0], [0.0, 5.0]]]))
    tensor([[[1., 0.]]])
    """
    products = keys @ memory.mT  # [batch, head, slot]
    of_keys = torch.linalg.vector_norm(keys, dim=-1)[:, :, None]
    of_slots = torch.linalg.vector_norm(memory, dim=-1)[:, None]
    return products / (of_keys * of_slots).clamp_min(SHORTEST)


def content_weights(
    keys: Float[Tensor, "batch head d_slot"],
    memory: Float[Tensor, "batch slot d_slot"],
    *,
    strength: Float[Tensor, "batch head"],
) -> Float[Tensor, "batch head slot"]:
    """``softmax_i(strength * cosine(k, M_i))``: equation 5."""
    return (strength[:, :, None] * cosine_similarity(keys, memory)).softmax(-1)


def shift_weights(
    weights: Float[Tensor, "batch head slot"], shift: Float[Tensor, "batch head move"]
) -> Float[Tensor, "batch head slot"]:
    """Move weights along the tape, whose ends meet: the circular convolution of equation 8.

    Args:
        shift: How likely each move is: of three, one slot back, none, one slot on.

    >>> on = torch.tensor([[[0.0, 0.0, 1.0]]])
    >>> shift_weights(torch.tensor([[[0.1, 0.2, 0.7]]]), on)
    tensor([[[0.7000, 0.1000, 0.2000]]])
    """
    return (roll_weights(weights, shift.shape[2] // 2) @ shift[..., None])[..., 0]


def roll_weights(
    weights: Float[Tensor, "batch head slot"], reach: int
) -> Float[Tensor, "batch head slot move"]:
    """The weights after every move, from ``reach`` slots back to ``reach`` slots on."""
    moved = [weights.roll(by, dims=2) if by else weights for by in range(-reach, reach + 1)]
    return torch.stack(moved, dim=-1)


def sharpen_weights(
    weights: Float[Tensor, "batch head slot"], sharpness: Float[Tensor, "batch head"]
) -> Float[Tensor, "batch head slot"]:
    """``w_i^s / sum_j w_j^s``: equation 9.

    Computed as a softmax of logarithms: a flat row of 128 slots to the power of 20 is below the
    least number that float32 has, and 0 / 0 is where plain implementations break down.

    >>> sharpen_weights(torch.tensor([[[0.2, 0.8]]]), torch.tensor([[2.0]]))
    tensor([[[0.0588, 0.9412]]])
    """
    return (sharpness[:, :, None] * (weights + TINY).log()).softmax(-1)


def locate(
    content: Float[Tensor, "batch head slot"],
    previous: Float[Tensor, "batch head slot"],
    *,
    gate: Float[Tensor, "batch head"],
    shift: Float[Tensor, "batch head move"],
    sharpness: Float[Tensor, "batch head"],
) -> Float[Tensor, "batch head slot"]:
    """From content weights to those that are used: equations 7 to 9.

    Args:
        gate: 1 takes the content weights, 0 those of the step before.
    """
    mixed = torch.lerp(previous, content, gate[:, :, None])
    return sharpen_weights(shift_weights(mixed, shift), sharpness)
