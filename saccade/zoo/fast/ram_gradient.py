"""The gradient of a path of glimpses, written out.

Places are constants to the gradient. So once a path is known, everything but the recurrence itself
is the same layer applied to many glimpses, and its gradient is one matrix product over all of them.
torch's own tape makes a product, and a sum, for each glimpse: a training step takes half as long
again. The test compares both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

_where_positive = torch.ops.aten.threshold_backward  # the gradient of relu


class GlimpseWeights(NamedTuple):
    """The matrices and biases between an image and the state."""

    patch: Float[Tensor, "d_glimpse d_patch"]
    patch_bias: Float[Tensor, " d_glimpse"]
    place: Float[Tensor, "d_glimpse 2"]
    place_bias: Float[Tensor, " d_glimpse"]
    what: Float[Tensor, "d_hidden d_glimpse"]
    """From the patch's units to the glimpse."""
    where: Float[Tensor, "d_hidden d_glimpse"]
    """From the place's units to the glimpse."""
    glimpse_bias: Float[Tensor, " d_hidden"]
    read: Float[Tensor, "d_hidden d_hidden"]
    """From the glimpse to the state."""
    keep: Float[Tensor, "d_hidden d_hidden"]
    """From the state before."""
    core_bias: Float[Tensor, " d_hidden"]


class GlimpsePath(NamedTuple):
    """All that was computed along a path, glimpse by glimpse."""

    patches: Float[Tensor, "glimpse rows d_patch"]
    places: Float[Tensor, "glimpse rows 2"]
    of_patch: Float[Tensor, "glimpse rows d_glimpse"]
    of_place: Float[Tensor, "glimpse rows d_glimpse"]
    glimpses: Float[Tensor, "glimpse rows d_hidden"]
    states: Float[Tensor, "glimpse rows d_hidden"]


def states_along(
    path: GlimpsePath, weights: GlimpseWeights
) -> Float[Tensor, "glimpse rows d_hidden"]:
    """The state after each glimpse, with its gradient for all weights."""
    return _States.apply(*path, *weights)


class _States(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        return GlimpsePath(*given[: len(GlimpsePath._fields)]).states.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch's own takes any
        n = len(GlimpsePath._fields)
        path, weights = GlimpsePath(*ctx.saved_tensors[:n]), GlimpseWeights(*ctx.saved_tensors[n:])
        pushed = _through_time(grad, path.states, weights.keep)
        later = pushed[1:].flatten(0, 1)  # the first glimpse has no state before it
        pushed = pushed.flatten(0, 1)
        glimpses, of_patch, of_place = (
            each.flatten(0, 1) for each in (path.glimpses, path.of_patch, path.of_place)
        )
        glimpse = _where_positive(pushed @ weights.read, glimpses, 0)
        patch = _where_positive(glimpse @ weights.what, of_patch, 0)
        place = _where_positive(glimpse @ weights.where, of_place, 0)
        grads = GlimpseWeights(
            patch=patch.T @ path.patches.flatten(0, 1),
            patch_bias=patch.sum(0),
            place=place.T @ path.places.flatten(0, 1),
            place_bias=place.sum(0),
            what=glimpse.T @ of_patch,
            where=glimpse.T @ of_place,
            glimpse_bias=glimpse.sum(0),
            read=pushed.T @ glimpses,
            keep=later.T @ path.states[:-1].flatten(0, 1),
            core_bias=pushed.sum(0),
        )
        return (*(None,) * n, *grads)


def _through_time(
    grad: Float[Tensor, "glimpse rows d_hidden"],
    states: Float[Tensor, "glimpse rows d_hidden"],
    keep: Float[Tensor, "d_hidden d_hidden"],
) -> Float[Tensor, "glimpse rows d_hidden"]:
    """The gradient before the rectifier at each glimpse, from the last one back."""
    pushed, coming = torch.empty_like(states), grad[-1]
    for number in range(len(states) - 1, -1, -1):
        _where_positive(coming, states[number], 0, grad_input=pushed[number])
        if number:
            coming = torch.addmm(grad[number - 1], pushed[number], keep)
    return pushed
