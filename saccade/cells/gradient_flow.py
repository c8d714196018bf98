"""Why gradients explode or vanish: the numbers, and the same seen in any cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.cells.cell import Cell
from saccade.cells.figure import new_figure
from saccade.cells.recording import record
from saccade.cells.state import map_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure


class ScalarGradient(NamedTuple):
    """What is left of a gradient in a network of one linear unit."""

    weight: float
    n_factors: int
    value: float
    label: str


def scalar_gradients(
    weights: tuple[float, ...] = (1.1, 0.9), *, n_steps: int = 50
) -> list[ScalarGradient]:
    """``dh(T)/dh(1)`` of ``h(t) = w h(t-1)``, and one step more, for each weight.

    From step 1 to step T there are T - 1 products, so the gradient is ``w^(T-1)``. The numbers that
    are often quoted beside this formula for T = 50, 117.4 and 0.00515, are ``w^50``: the gradient
    from the state before the first step, ``dh(T)/dh(0)``. Both are given, with their labels.

    >>> for gradient in scalar_gradients():
    ...     print(gradient.label, f"{gradient.value:.4g}")
    dh(50)/dh(0) = 1.1^50 117.4
    dh(50)/dh(1) = 1.1^49 106.7
    dh(50)/dh(0) = 0.9^50 0.005154
    dh(50)/dh(1) = 0.9^49 0.005726
    """
    return [
        ScalarGradient(w, n, w**n, f"dh({n_steps})/dh({n_steps - n}) = {w:g}^{n}")
        for w in weights
        for n in (n_steps, n_steps - 1)
    ]


def gradient_norms(
    cell: Cell, inputs: Float[Tensor, "batch pos d_input"], state: Any = None
) -> Float[Tensor, " states"]:
    """How long the gradient of the last output is at every state on the way: mean over the rows.

    The error signal is one random direction of the last output, of length one. There is one state
    more than there are steps: the one before them stands first. All tensors of a state count
    together.
    """
    first = cell.start(len(inputs)) if state is None else state
    recorded = record(cell, inputs, map_tensors(_as_start, first))
    direction = torch.randn_like(recorded.outputs[:, -1])
    direction = direction / direction.norm(dim=1, keepdim=True)
    states = [[t for t in tensors_of(s) if t.is_floating_point()] for s in recorded.states]
    flat = [tensor for state in states for tensor in state]
    error = (recorded.outputs[:, -1] * direction).sum()
    grads = torch.autograd.grad(error, flat, materialize_grads=True)
    n = len(states[0])
    steps = [torch.cat(grads[place : place + n], dim=1) for place in range(0, len(grads), n)]
    return torch.stack([grad.norm(dim=1).mean() for grad in steps])


def _as_start(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


class Attracted(NamedTuple):
    """Where a unit ends from each starting point, and how much that depends on it."""

    starts: Float[Tensor, " start"]
    ends: Float[Tensor, " start"]
    gradients: Float[Tensor, " start"]


def attracted(weight: float = 3.0, *, n_steps: int = 50, n_each_side: int = 200) -> Attracted:
    """Iterate ``h <- tanh(weight h)`` from everywhere between -1 and 1.

    Above a weight of one there are two attractors. Within the basin of either the gradient
    vanishes, since a small move ends in the same place; on the border between them, at 0, it
    explodes, since it decides which (Bengio, Simard and Frasconi, 1994: a state that holds its
    memory safely has forgotten how it came there).
    """
    places = torch.arange(-n_each_side, n_each_side + 1, dtype=torch.float64)
    starts = (places / n_each_side).requires_grad_()
    ends = starts
    for _ in range(n_steps):
        ends = torch.tanh(weight * ends)
    (gradients,) = torch.autograd.grad(ends.sum(), starts)
    return Attracted(starts.detach(), ends.detach(), gradients)


def draw_gradient_norms(norms: Mapping[str, Float[Tensor, " states"]]) -> Figure:
    """Gradient against time, one line a cell, on a scale of powers of ten."""
    figure, (panel,) = new_figure(1)
    for name, values in norms.items():
        panel.semilogy(range(len(values)), values.tolist(), label=name)
    panel.axhline(1.0, color="0.6", linewidth=0.8)
    panel.set_xlabel("state before step")
    panel.set_ylabel("length of the gradient")
    panel.legend(fontsize="small")
    return figure


def draw_attracted(found: Attracted) -> Figure:
    """Where each start ends, and the gradient there."""
    figure, (left, right) = new_figure(2)
    left.plot(found.starts, found.ends)
    left.set_ylabel("h after the last step")
    right.semilogy(found.starts, found.gradients.clamp_min(1e-30))
    right.set_ylabel("its gradient")
    for panel in (left, right):
        panel.set_xlabel("h before the first step")
    return figure
