"""The weighted sum of the values, with a backward pass made for one query at a time."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from saccade.attention.unrounded import apply_unrounded


def read(
    weights: Float[Tensor, "batch query_pos key_pos"],
    values: Float[Tensor, "batch key_pos d_value"],
) -> Float[Tensor, "batch query_pos d_value"]:
    """``context = sum_j weights[j] values[j]``; the same numbers as ``weights @ values``.

    A decoder asks one query a step. The gradient of the values is then an outer product, and
    torch's batched matrix product takes three times as long for it as a plain multiplication does.

    >>> read(torch.tensor([[[0.25, 0.75]]]), torch.tensor([[[0.0, 4.0], [8.0, 0.0]]]))
    tensor([[[6., 1.]]])
    """
    if weights.shape[1] == 1 and torch.is_grad_enabled():
        return apply_unrounded(_ReadOne, weights, values)
    return weights @ values


class _ReadOne(Function):
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
