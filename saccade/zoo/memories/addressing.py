"""Addressing of Neural Turing Machines and the DNC: by content, by shift, by usage, by links.

Graves et al., 2014 (https://arxiv.org/abs/1410.5401), section 3.3, figure 2: the weights of a head
go through four stages, and each is a function here::

    content -> interpolate with those of the previous step -> shift -> sharpen
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from saccade.zoo.fast.forms import is_fast
from saccade.zoo.fast.tape_heads import place_heads_at_once, write_one_head

# The smallest product of two norms to divide by: a slot that was never written has norm 0, and the
# derivative of x/|x| is infinite there. One empty slot is enough for an exploding gradient.
SHORTEST = 1e-2
# The smallest weight, so that its logarithm exists.
TINY = 1e-16


def cosine_similarity(
    keys: Float[Tensor, "batch head d_slot"], memory: Float[Tensor, "batch slot d_slot"]
) -> Float[Tensor, "batch head slot"]:
    """``k . M_i / (|k| |M_i|)`` of every key with every slot: the paper's equation 6.

    `saccade.zoo.attention.scores.CosineScore` scales its keys to length 1 once for many queries; a
    memory that is written at every step would have to be copied for that, so here the products are
    divided.

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
    """Shift weights along the tape by a circular convolution: equation 8.

    Args:
        shift: Probability of each shift; of three: -1, 0, +1 slot.

    >>> on = torch.tensor([[[0.0, 0.0, 1.0]]])
    >>> shift_weights(torch.tensor([[[0.1, 0.2, 0.7]]]), on)
    tensor([[[0.7000, 0.1000, 0.2000]]])
    """
    reach = shift.shape[2] // 2
    moved = [weights.roll(by, dims=2) if by else weights for by in range(-reach, reach + 1)]
    return (torch.stack(moved, dim=-1) @ shift[..., None])[..., 0]


def sharpen_weights(
    weights: Float[Tensor, "batch head slot"], sharpness: Float[Tensor, "batch head"]
) -> Float[Tensor, "batch head slot"]:
    """``w_i^s / sum_j w_j^s``: equation 9.

    Computed as a softmax of logarithms: a uniform row of 128 slots to the power of 20 is below the
    smallest float32, and plain implementations fail with 0 / 0.

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
        gate: 1 takes the content weights, 0 those of the previous step.
    """
    mixed = torch.lerp(previous, content, gate[:, :, None])
    return sharpen_weights(shift_weights(mixed, shift), sharpness)


# The weights of a Neural Turing Machine's heads, from the controller's outputs.


class HeadNumbers(NamedTuple):
    """The controller's outputs for its heads, from a linear map."""

    key: Float[Tensor, "batch head d_slot"]
    positive: Float[Tensor, "batch head 2"]
    """Strength and sharpness."""
    gate: Float[Tensor, "batch head 1"]
    shift: Float[Tensor, "batch head move"]


def cut(emitted: Float[Tensor, "batch head d_head"], d_slot: int) -> HeadNumbers:
    """The numbers of each head, in the order of `HeadNumbers`."""
    moves = emitted.shape[2] - d_slot - 3
    return HeadNumbers(*emitted.split((d_slot, 2, 1, moves), dim=2))


def init_moving_heads(
    emitted: Float[Tensor, "head d_head"], d_slot: int, *, n_reads: int = 0
) -> None:
    """Initialise biases of heads, in place: write heads move by one slot per step and stay sharp.

    In an untrained controller a shift by +1 is then seven times as likely as any other, and a write
    head keeps 95 % of the previous weights. The first ``n_reads`` heads read: they start with equal
    weight on the previous weights and the content weights.
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
    """Squash the controller's outputs into range, then apply all stages of addressing.

    ``key`` is a tanh, the strength a softplus, the sharpness one more than a softplus, the gate a
    sigmoid and the shift a softmax.
    """
    said = cut(emitted, memory.shape[2])
    if is_fast() and torch.is_grad_enabled():
        return place_heads_at_once(*said, memory, previous, shortest=SHORTEST, tiny=TINY)
    strength, sharpness = functional.softplus(said.positive).unbind(2)
    content = content_weights(said.key.tanh(), memory, strength=strength)
    return locate(
        content,
        previous,
        gate=said.gate[..., 0].sigmoid(),
        shift=said.shift.softmax(-1),
        sharpness=1 + sharpness,
    )


# Slots that can be written: erase, then add.


def write_slots(
    memory: Float[Tensor, "batch slot d_slot"],
    weights: Float[Tensor, "batch head slot"],
    *,
    erase: Float[Tensor, "batch head d_slot"],
    add: Float[Tensor, "batch head d_slot"],
) -> Float[Tensor, "batch slot d_slot"]:
    """``M_i <- M_i prod_h (1 - w_hi e_h) + sum_h w_hi a_h``: returns a new memory.

    Graves et al., 2014 (https://arxiv.org/abs/1410.5401), equations 3 and 4; with several heads,
    all erase before any adds, so their order does not matter.

    >>> memory, here = torch.ones(1, 2, 1), torch.tensor([[[1.0, 0.0]]])
    >>> write_slots(memory, here, erase=torch.ones(1, 1, 1), add=torch.full((1, 1, 1), 5.0))
    tensor([[[5.],
             [1.]]])
    """
    if is_fast() and weights.shape[1] == 1:
        return write_one_head(memory, weights, erase=erase, add=add)
    kept = (1 - weights[..., None] * erase[:, :, None]).prod(1)  # [batch, slot, d_slot]
    return torch.baddbmm(memory * kept, weights.mT, add)


# Which slots are in use, and which are free to be written: the DNC's dynamic allocation.

# The smallest usage. Slots with usage exactly 0 would tie, and the product of usages would have no
# gradient; the value is from DeepMind's code.
LEAST = 1e-6


def next_usage(
    usage: Float[Tensor, "batch slot"],
    *,
    write_weights: Float[Tensor, "batch slot"],
    read_weights: Float[Tensor, "batch head slot"],
    free: Float[Tensor, "batch head"],
) -> Float[Tensor, "batch slot"]:
    """``u <- (u + w - u w) prod_h (1 - f_h r_h)``: written slots are used, freed ones no longer.

    Graves et al., 2016 (https://doi.org/10.1038/nature20101), Methods, "dynamic memory allocation".
    ``w`` and ``r`` are the weights of the step before.

    Args:
        free: The free gate of each read head.
    """
    # As in the authors' code, no gradient goes through the write weights.
    written = write_weights.detach()
    kept = (1 - free[:, :, None] * read_weights).prod(1)  # [batch, slot]
    return (usage + written - usage * written) * kept


def allocation_weights(usage: Float[Tensor, "batch slot"]) -> Float[Tensor, "batch slot"]:
    """Weights on the least used slot, and on the next ones as far as that slot is in use.

    The same section, equation 1: with ``p`` the slots in order of usage, least used first, ``a[p_j]
    = (1 - u[p_j]) prod_(i<j) u[p_i]``. They sum to at most 1, and to less where all slots are in
    use.

    >>> allocation_weights(torch.tensor([[1.0, 0.5, 0.0]]))
    tensor([[0.0000e+00, 5.0000e-07, 1.0000e+00]])
    """
    usage = LEAST + (1 - LEAST) * usage
    ascending = usage.sort(dim=-1, stable=True)
    before = ascending.values.cumprod(-1).roll(1, dims=-1)  # the product over all less used slots
    first = torch.arange(usage.shape[1], device=usage.device) == 0
    in_order = (1 - ascending.values) * before.masked_fill(first, 1.0)
    return torch.zeros_like(usage).scatter(1, ascending.indices, in_order)


# In which order slots were written: the DNC's temporal links.


class Links(NamedTuple):
    """The order in which slots were written."""

    matrix: Float[Tensor, "batch slot slot"]
    """``matrix[i, j]``: degree to which slot i was written right after slot j."""
    precedence: Float[Tensor, "batch slot"]
    """Degree to which each slot was the last to be written."""


class Followed(NamedTuple):
    """Weights one step forward and one step backward in the order of writing."""

    forward: Float[Tensor, "batch head slot"]
    backward: Float[Tensor, "batch head slot"]


def no_links(like: Float[Tensor, "batch slot d_slot"]) -> Links:
    """The initial links: nothing was written yet."""
    batch, slots, _ = like.shape
    return Links(like.new_zeros(batch, slots, slots), like.new_zeros(batch, slots))


def next_links(links: Links, write_weights: Float[Tensor, "batch slot"]) -> Links:
    """Update the links with one more write.

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
    """The slots written after and before those read: ``f = L r`` and ``b = L^T r``."""
    return Followed(forward=weights @ links.matrix.mT, backward=weights @ links.matrix)
