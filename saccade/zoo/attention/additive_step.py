"""A softmax of additive scores for one query at a time: what a decoder does at every step.

Score, softmax and read are one operation here, with one gradient. In pieces, each of which has to
be recorded and taken back by itself, a step takes longer.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from saccade.zoo.attention.masks import unrecorded_softmax
from saccade.zoo.attention.scores import squashed_sum
from saccade.zoo.fast.precision import apply_unrounded


class Looked(NamedTuple):
    """One look at the memory."""

    context: Float[Tensor, "batch 1 d_value"]
    weights: Float[Tensor, "batch 1 key_pos"]
    squashed: Float[Tensor, "batch key_pos d_score"]
    """``(1 + tanh(q + k)) / 2``, which the gradient needs."""


class Slopes(NamedTuple):
    """What a look's gradients are made of."""

    scores: Float[Tensor, "batch 1 key_pos"]
    """Their gradient."""
    sums: Float[Tensor, "batch key_pos d_score"]
    """That of ``q + k``, but for the factor 4 v."""


def look(
    query: Float[Tensor, "batch d_score"],
    keys: Float[Tensor, "batch key_pos d_score"],
    values: Float[Tensor, "batch key_pos d_value"],
    *,
    mask: Bool[Tensor, "batch 1 key_pos"],
    v: Float[Tensor, " d_score"],
    exponentials: Float[Tensor, "batch key_pos d_score"] | None = None,
) -> Looked:
    """Compare one projected query with all keys, and read; no gradient is recorded."""
    squashed = squashed_sum(query[:, None], keys, exponentials)
    # The scores but for a sum over v, which all keys have in common.
    halves = torch.mv(squashed.flatten(0, 1), v).view(mask.shape)
    weights = unrecorded_softmax(halves.mul_(2), mask)
    return Looked(torch.bmm(weights, values), weights, squashed)


def look_back(
    to_weights: Float[Tensor, "batch 1 key_pos"],
    *,
    weights: Float[Tensor, "batch 1 key_pos"],
    squashed: Float[Tensor, "batch key_pos d_score"],
) -> Slopes:
    """From the gradient of the weights to that of scores and of what was compared.

    The gradient of v is ``2 scores . squashed``: scores that all change alike change no weight, so
    that what `look` left out needs no gradient.
    """
    scores = torch.ops.aten._softmax_backward_data(to_weights, weights, -1, weights.dtype)
    return Slopes(scores, torch.ops.aten.sigmoid_backward(scores.mT, squashed))


class Read(NamedTuple):
    """What a look gave, with a gradient."""

    context: Float[Tensor, "batch 1 d_value"]
    weights: Float[Tensor, "batch 1 key_pos"]


def additive_step(
    query: Float[Tensor, "batch d_query"],
    keys: Float[Tensor, "batch key_pos d_score"],
    values: Float[Tensor, "batch key_pos d_value"],
    *,
    mask: Bool[Tensor, "batch 1 key_pos"],
    of_query: Float[Tensor, "d_score d_query"],
    v: Float[Tensor, "1 d_score"],
    exponentials: Float[Tensor, "batch key_pos d_score"] | None = None,
) -> Read:
    """Compare one query with all keys, and read the values by the weights.

    Args:
        keys: Projected already; the query is not.
        of_query: The query's projection, W of the score.
        exponentials: Of the keys, if there are any
        (`saccade.zoo.attention.scores.exponentials_of`).
    """
    return Read(*apply_unrounded(_Step, query, keys, values, mask, of_query, v, exponentials))


class _Step(Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        of_query: Tensor,
        v: Tensor,
        exponentials: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        projected = query @ of_query.T
        looked = look(projected, keys, values, mask=mask, v=v[0], exponentials=exponentials)
        ctx.save_for_backward(query, values, of_query, v, looked.weights, looked.squashed)
        ctx.set_materialize_grads(False)
        return looked.context, looked.weights

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides names
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        to_context, to_weights = gradients
        query, values, of_query, v, weights, squashed = ctx.saved_tensors
        if to_context is not None:
            of_context = torch.bmm(to_context, values.mT)
            to_weights = of_context if to_weights is None else of_context + to_weights
        if to_weights is None:
            return (None,) * 7
        scores, sums = look_back(to_weights, weights=weights, squashed=squashed)
        for_v = torch.mm(scores.view(1, -1), squashed.flatten(0, 1)).mul_(2)
        of_v = 4 * v  # tanh'(x) is 4 s (1 - s) with s = sigmoid(2 x)
        to_projected = sums.sum(1).mul_(of_v)
        for_keys = sums.mul_(of_v)
        for_query, for_weight = to_projected @ of_query, to_projected.T @ query
        # An outer product; torch's batched matrix product takes three times as long for it.
        for_values = None if to_context is None else weights.mT * to_context
        return for_query, for_keys, for_values, None, for_weight, for_v, None
