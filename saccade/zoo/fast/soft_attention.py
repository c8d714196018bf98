"""Softmax attention with hand-written gradients: the weights, the read, and additive scores.

A decoder attends at every step. Beside its matrix products, a step costs passes over tensors of the
size of the keys, which are bound by memory. Autograd records and differentiates every operator by
itself; here each function is one operation with one gradient.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from saccade.zoo.fast.forms import apply_upcast, upcast

# exp(2 x 13 + 2 x 30) is just below the largest float32. A query beyond 30 may be clamped to 30:
# with any key up to 13 its tanh is 1 to the last digit.
LARGEST_KEY, LARGEST_QUERY = 13.0, 30.0


# Masked softmax.


def softmax_of_attended(
    scores: Float[Tensor, "*shape"], mask: Bool[Tensor, "*#shape"]
) -> Float[Tensor, "*shape"]:
    """Masked softmax with the gradient of a plain one, which is zero wherever a weight is zero.

    Plain form: `saccade.zoo.attention.masks.masked_softmax`.
    """
    return _Softmax.apply(scores, mask)


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor) -> Tensor:
        weights = _softmax(scores, mask)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad,), (weights,) = grad_outputs, ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype), None


def _softmax(scores: Tensor, mask: Tensor) -> Tensor:
    filled = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return filled.softmax(-1).mul_(mask)


# The weighted read of one query.


def read_one(
    weights: Float[Tensor, "batch 1 key_pos"], values: Float[Tensor, "batch key_pos d_value"]
) -> Float[Tensor, "batch 1 d_value"]:
    """Weighted read of one query, whose gradient for the values is a broadcast product.

    Torch's batched matrix product takes three times as long for this outer product.

    Plain form: `saccade.zoo.attention.attend.read`.
    """
    return apply_upcast(_Read, weights, values)


class _Read(Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(weights, values)
        return weights @ values

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,) = grad_outputs
        weights, values = ctx.saved_tensors
        for_weights, for_values = ctx.needs_input_grad
        return (
            grad @ values.mT if for_weights else None,
            weights.mT * grad if for_values else None,
        )


# Additive scores.


def additive_scores(
    query: Float[Tensor, "batch query_pos d_score"],
    keys: Float[Tensor, "batch key_pos d_score"],
    v: Float[Tensor, "1 d_score"],
) -> Float[Tensor, "batch query_pos key_pos"]:
    """``v . tanh(q + k)``, with few passes over the tensor [batch, key, d_score].

    The sum is squashed in place, and in the backward pass ``grad * slope`` is one pass, where
    autograd first writes out the outer product of the gradient and v.

    The saved tensor is ``s = sigmoid(2 (q + k))``, since ``tanh(x) = 2 sigmoid(2 x) - 1``: torch's
    sigmoid is much faster than its tanh on some CPUs, and ``2`` and ``- 1`` cost nothing where they
    are applied: to the query, in the sum, and after the product with v.

    Plain form: `saccade.zoo.attention.scores.AdditiveScore.forward`.

    Args:
        query: Already projected, as the keys are.
    """
    return apply_upcast(_Scores, query, keys, v)


class _Scores(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        squashed = squashed_sum(query[:, :, None], key[:, None])
        ctx.save_for_backward(squashed, v)  # [batch, query_pos, key_pos, d_score], [1, d_score]
        scores = torch.addmv(-v.sum(), squashed.flatten(0, 2), v[0], alpha=2)
        return scores.view(squashed.shape[:3])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides names
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (grad,) = grad_outputs  # [batch, query_pos, key_pos]
        squashed, v = ctx.saved_tensors
        for_v = torch.addmm(
            -grad.sum(), grad.reshape(1, -1), squashed.flatten(0, 2), alpha=2
        )  # [1, d_score]
        slope = torch.ops.aten.sigmoid_backward(grad[..., None], squashed)
        of_v = 4 * v
        for_query = slope.sum(2) * of_v
        slope *= of_v
        return for_query, slope.squeeze(1) if slope.shape[1] == 1 else slope.sum(1), for_v


def squashed_sum(
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    exponentials: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """``(1 + tanh(q + k)) / 2``, which is ``1 / (1 + exp(-2 q) exp(-2 k))``.

    Args:
        exponentials: Those of the keys, from `exponentials_of`, if available.

    >>> q, k = torch.randn(2, 1, 7), torch.randn(2, 5, 7)
    >>> for exponentials in (None, exponentials_of(k)):
    ...     s = squashed_sum(q, k, exponentials)
    ...     print(torch.allclose(2 * s - 1, torch.tanh(q + k), atol=1e-6))
    True
    True
    """
    if exponentials is None:
        return torch.add(2 * query, key, alpha=2).sigmoid_()
    of_query = query.clamp(-LARGEST_QUERY, LARGEST_QUERY).mul_(-2).exp_()
    return torch.addcmul(query.new_ones(()), of_query, exponentials).reciprocal_()


def exponentials_of(key: Float[Tensor, "..."]) -> Float[Tensor, "..."] | None:
    """``exp(-2 k)``, computed once per sentence, so that no step computes it for all keys.

    None where keys are so large that the product with a query's exponential might overflow, and
    where it would save no time. Without a gradient: each step sends its own to the keys.
    """
    if key.device.type != "cpu" or key.dtype not in (torch.float32, torch.float64):
        return None
    key = key.detach()
    low, high = key.aminmax()
    if not -LARGEST_KEY <= low <= high <= LARGEST_KEY:  # NaN is not, either
        return None
    return key.mul(-2).exp_()


# A softmax of additive scores for one query: score, softmax and read as one operation.


class StepMemory(NamedTuple):
    """The memory that every step attends to, prepared once per sentence."""

    keys: Float[Tensor, "batch key_pos d_score"]
    """Projected."""
    values: Float[Tensor, "batch key_pos d_value"]
    mask: Bool[Tensor, "batch key_pos"]
    exponentials: Float[Tensor, "batch key_pos d_score"] | None
    """`exponentials_of` the keys."""


class Read(NamedTuple):
    """Context and weights of a step."""

    context: Float[Tensor, "batch 1 d_value"]
    weights: Float[Tensor, "batch 1 key_pos"]


def prepare_steps(
    keys: Float[Tensor, "batch key_pos d_score"],
    values: Float[Tensor, "batch key_pos d_value"],
    mask: Bool[Tensor, "batch key_pos"],
) -> StepMemory:
    """What `additive_step` needs of the memory; under autocast in 32 bits, once for all steps."""
    if torch.is_autocast_enabled(keys.device.type):
        keys, values = upcast(keys), upcast(values)
    return StepMemory(keys, values, mask, exponentials_of(keys))


def additive_step(
    query: Float[Tensor, "batch d_query"],
    memory: StepMemory,
    *,
    of_query: Float[Tensor, "d_score d_query"],
    v: Float[Tensor, "1 d_score"],
) -> Read:
    """Score, softmax and read for one query.

    Plain form: `saccade.zoo.attention.attend.Attention.forward`, which scores, selects and reads.

    Args:
        of_query: The query's projection, W of the score.
    """
    return Read(*apply_upcast(_Step, query, *memory, of_query, v))


class _Step(Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        exponentials: Tensor | None,
        of_query: Tensor,
        v: Tensor,
    ) -> tuple[Tensor, Tensor]:
        memory = StepMemory(keys, values, mask, exponentials)
        looked = look(query @ of_query.T, memory, v=v[0])
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
        return for_query, for_keys, for_values, None, None, for_weight, for_v


class Looked(NamedTuple):
    """One step of attention, without gradient."""

    context: Float[Tensor, "batch 1 d_value"]
    weights: Float[Tensor, "batch 1 key_pos"]
    squashed: Float[Tensor, "batch key_pos d_score"]
    """``(1 + tanh(q + k)) / 2``, which the gradient needs."""


class Slopes(NamedTuple):
    """The gradients of one `look`."""

    scores: Float[Tensor, "batch 1 key_pos"]
    """Gradient of the scores."""
    sums: Float[Tensor, "batch key_pos d_score"]
    """Gradient of ``q + k``, without the factor 4 v."""


def look(
    query: Float[Tensor, "batch d_score"], memory: StepMemory, *, v: Float[Tensor, " d_score"]
) -> Looked:
    """Score, softmax and read for one projected query; no gradient is recorded."""
    squashed = squashed_sum(query[:, None], memory.keys, memory.exponentials)
    mask = memory.mask[:, None]
    # The scores up to a sum over v, which all keys share.
    halves = torch.mv(squashed.flatten(0, 1), v).view(mask.shape)
    weights = _softmax(halves.mul_(2), mask)
    return Looked(torch.bmm(weights, memory.values), weights, squashed)


def look_back(
    to_weights: Float[Tensor, "batch 1 key_pos"],
    *,
    weights: Float[Tensor, "batch 1 key_pos"],
    squashed: Float[Tensor, "batch key_pos d_score"],
) -> Slopes:
    """From the gradient of the weights to those of the scores and of ``q + k``.

    The gradient of v is ``2 scores . squashed``: adding a constant to all scores changes no weight,
    so the term that `look` leaves out needs no gradient.
    """
    scores = torch.ops.aten._softmax_backward_data(to_weights, weights, -1, weights.dtype)
    return Slopes(scores, torch.ops.aten.sigmoid_backward(scores.mT, squashed))
