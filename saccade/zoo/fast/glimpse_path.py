"""A path of glimpses over images: in-place steps and a hand-written gradient of the whole path.

Locations are constants for the gradient. So once a path is known, everything but the recurrence is
the same layer applied to many glimpses, and its gradient is one matrix product over all of them.
Autograd makes one product and one sum per glimpse: a training step takes 1.5 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function

_where_positive = torch.ops.aten.threshold_backward  # the gradient of relu


class GlimpseLayers(NamedTuple):
    """The layers between an image and the state."""

    of_patch: nn.Linear
    of_place: nn.Linear
    what: nn.Linear
    """From the patch's units to the glimpse."""
    where: nn.Linear
    """From the location's units to the glimpse, without bias."""
    read: nn.Linear
    """From the glimpse to the state."""
    keep: nn.Linear
    """From the previous state, without bias."""


class Path(NamedTuple):
    """Locations of the glimpses and the states after each."""

    places: Float[Tensor, "glimpse rows 2"]
    states: Float[Tensor, "glimpse rows d_hidden"]
    """With the gradient of all layers."""


PatchAt = Callable[[Float[Tensor, "rows 2"]], Float[Tensor, "rows d_patch"]]
"""From locations to patches."""
PlaceAt = Callable[
    [Float[Tensor, "glimpse rows 2"], int, Float[Tensor, "rows d_hidden"]], Float[Tensor, "rows 2"]
]
"""From noise, the glimpse index and the previous state (zeros at first) to a location."""


def glimpse_path(
    layers: GlimpseLayers,
    noise: Float[Tensor, "glimpse rows 2"],
    *,
    patch_at: PatchAt,
    place_at: PlaceAt,
) -> Path:
    """Take glimpses one after another, each at the location that the previous state selects.

    Plain form: `saccade.zoo.models.ram.Ram.path`.

    Args:
        noise: Passed to ``place_at``.
    """
    weights = _weights_of(layers)
    found = _forward(weights, noise, patch_at=patch_at, place_at=place_at)
    return Path(found.places, _States.apply(*found, *weights))


class _Weights(NamedTuple):
    """The matrices and biases of the layers."""

    patch: Float[Tensor, "d_glimpse d_patch"]
    patch_bias: Float[Tensor, " d_glimpse"]
    place: Float[Tensor, "d_glimpse 2"]
    place_bias: Float[Tensor, " d_glimpse"]
    what: Float[Tensor, "d_hidden d_glimpse"]
    where: Float[Tensor, "d_hidden d_glimpse"]
    glimpse_bias: Float[Tensor, " d_hidden"]
    read: Float[Tensor, "d_hidden d_hidden"]
    keep: Float[Tensor, "d_hidden d_hidden"]
    core_bias: Float[Tensor, " d_hidden"]


class _Activations(NamedTuple):
    """All activations along a path, glimpse by glimpse."""

    patches: Float[Tensor, "glimpse rows d_patch"]
    places: Float[Tensor, "glimpse rows 2"]
    of_patch: Float[Tensor, "glimpse rows d_glimpse"]
    of_place: Float[Tensor, "glimpse rows d_glimpse"]
    glimpses: Float[Tensor, "glimpse rows d_hidden"]
    states: Float[Tensor, "glimpse rows d_hidden"]


def _weights_of(layers: GlimpseLayers) -> _Weights:
    return _Weights(
        patch=layers.of_patch.weight,
        patch_bias=layers.of_patch.bias,
        place=layers.of_place.weight,
        place_bias=layers.of_place.bias,
        what=layers.what.weight,
        where=layers.where.weight,
        glimpse_bias=layers.what.bias,
        read=layers.read.weight,
        keep=layers.keep.weight,
        core_bias=layers.read.bias,
    )


@torch.no_grad()
def _forward(
    weights: _Weights,
    noise: Float[Tensor, "glimpse rows 2"],
    *,
    patch_at: PatchAt,
    place_at: PlaceAt,
) -> _Activations:
    """The forward pass, written into preallocated buffers."""
    path = _empty_path(weights, *noise.shape[:2])
    before = torch.zeros_like(path.states[0])
    for step, now in enumerate(map(_Activations._make, zip(*path, strict=True))):
        now.places.copy_(place_at(noise, step, before))
        now.patches.copy_(patch_at(now.places))
        torch.addmm(weights.patch_bias, now.patches, weights.patch.T, out=now.of_patch).relu_()
        torch.addmm(weights.place_bias, now.places, weights.place.T, out=now.of_place).relu_()
        torch.addmm(weights.glimpse_bias, now.of_patch, weights.what.T, out=now.glimpses)
        now.glimpses.addmm_(now.of_place, weights.where.T).relu_()
        torch.addmm(weights.core_bias, now.glimpses, weights.read.T, out=now.states)
        if step:
            now.states.addmm_(before, weights.keep.T)
        before = now.states.relu_()
    return path


def _empty_path(weights: _Weights, n_glimpses: int, rows: int) -> _Activations:
    d_glimpse, d_patch = weights.patch.shape
    d_hidden = len(weights.keep)
    sizes = (d_patch, 2, d_glimpse, d_glimpse, d_hidden, d_hidden)
    return _Activations(*(weights.keep.new_empty(n_glimpses, rows, size) for size in sizes))


class _States(Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        return _Activations(*given[: len(_Activations._fields)]).states.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch's own takes any
        n = len(_Activations._fields)
        path, weights = _Activations(*ctx.saved_tensors[:n]), _Weights(*ctx.saved_tensors[n:])
        pushed = _through_time(grad, path.states, weights.keep)
        later = pushed[1:].flatten(0, 1)  # the first glimpse has no previous state
        pushed = pushed.flatten(0, 1)
        glimpses, of_patch, of_place = (
            each.flatten(0, 1) for each in (path.glimpses, path.of_patch, path.of_place)
        )
        glimpse = _where_positive(pushed @ weights.read, glimpses, 0)
        patch = _where_positive(glimpse @ weights.what, of_patch, 0)
        place = _where_positive(glimpse @ weights.where, of_place, 0)
        grads = _Weights(
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
    """The gradient before the ReLU at each glimpse, from the last to the first."""
    pushed, coming = torch.empty_like(states), grad[-1]
    for number in range(len(states) - 1, -1, -1):
        _where_positive(coming, states[number], 0, grad_input=pushed[number])
        if number:
            coming = torch.addmm(grad[number - 1], pushed[number], keep)
    return pushed
