"""Lecture examples: backpropagation through time, vanishing gradients, hand-set networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import MissingPackageError
from saccade.zoo.cells.cell import Cell, Recorded, map_tensors, record, tensors_of
from saccade.zoo.cells.simple import LinearContextCell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# An empty matplotlib figure.

PANEL = (3.6, 3.0)  # inches


def new_figure(n_panels: int) -> tuple[Figure, list[Axes]]:
    """A figure with ``n_panels`` panels side by side, without a window or global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    figure = Figure(figsize=(PANEL[0] * n_panels, PANEL[1]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, n_panels, squeeze=False)
    return figure, list(panels[0])


# Back-propagation through time, every equation written out.


class TinyRnn(NamedTuple):
    """The weights of ``h(t) = tanh(z(t))`` with ``z(t) = U x(t) + W h(t-1)``, ``y = tanh(V h)``."""

    u: Float[Tensor, "d_hidden d_input"]
    v: Float[Tensor, "d_output d_hidden"]
    w: Float[Tensor, "d_hidden d_hidden"]


class Run(NamedTuple):
    """Activations of the forward pass for the backward pass."""

    h: Float[Tensor, "pos batch d_hidden"]
    y: Float[Tensor, "pos batch d_output"]


def forward(rnn: TinyRnn, x: Float[Tensor, "pos batch d_input"]) -> Run:
    """Unroll the network from a state of zeros."""
    h = x.new_zeros(x.shape[1], len(rnn.w))
    hidden = []
    for step in x:
        z = step @ rnn.u.T + h @ rnn.w.T
        h = torch.tanh(z)
        hidden.append(h)
    stacked = torch.stack(hidden)
    return Run(stacked, torch.tanh(stacked @ rnn.v.T))


def squared_error(
    y: Float[Tensor, "pos batch d_output"], target: Float[Tensor, "pos batch d_output"]
) -> Float[Tensor, ""]:
    """``L = 1/2 sum (y - target)^2``."""
    return 0.5 * (y - target).square().sum()


def backward(
    rnn: TinyRnn,
    x: Float[Tensor, "pos batch d_input"],
    run: Run,
    *,
    target: Float[Tensor, "pos batch d_output"],
) -> TinyRnn:
    """The gradient of `squared_error` for each weight, without autograd.

    With a bar for "the derivative of L by", and t from the last step to the first::

        y_bar(t) = dL/dy(t)
        r_bar(t) = y_bar(t) * phi'(r(t))
        h_bar(t) = V^T r_bar(t) + W^T z_bar(t+1)
        z_bar(t) = h_bar(t) * phi'(z(t))

        U_bar = sum_t z_bar(t) x(t)^T
        V_bar = sum_t r_bar(t) h(t)^T
        W_bar = sum_t z_bar(t+1) h(t)^T

    phi is tanh, so ``phi'(z) = 1 - h^2`` and ``phi'(r) = 1 - y^2``. There is no gradient from
    beyond the last step, and the state before the first is zero, so it adds nothing to W's
    gradient.
    """
    u_bar, v_bar, w_bar = (torch.zeros_like(weight) for weight in rnn)
    z_bar_next = torch.zeros_like(run.h[0])
    for t in reversed(range(len(x))):
        h, y = run.h[t], run.y[t]
        y_bar = y - target[t]
        r_bar = y_bar * (1 - y**2)
        h_bar = r_bar @ rnn.v + z_bar_next @ rnn.w
        z_bar = h_bar * (1 - h**2)
        u_bar += z_bar.T @ x[t]
        v_bar += r_bar.T @ h
        w_bar += z_bar_next.T @ h
        z_bar_next = z_bar
    return TinyRnn(u_bar, v_bar, w_bar)


# Why gradients explode or vanish: the formula, and measurements in any cell.


class ScalarGradient(NamedTuple):
    """A gradient in a network of one linear unit."""

    weight: float
    n_factors: int
    value: float
    label: str


def scalar_gradients(
    weights: tuple[float, ...] = (1.1, 0.9), *, n_steps: int = 50
) -> list[ScalarGradient]:
    """``dh(T)/dh(1)`` of ``h(t) = w h(t-1)``, and one step more, for each weight.

    From step 1 to step T there are T - 1 products, so the gradient is ``w^(T-1)``. The numbers that
    are often quoted with this formula for T = 50, 117.4 and 0.00515, are ``w^50``: the gradient
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
    """The norm of the last output's gradient at every earlier state: mean over rows.

    The error signal is one random direction of the last output, of length one. There is one state
    more than there are steps: the initial state is first. The norm is over all tensors of a state.
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
    """The final value of a unit for each starting point, and its derivative."""

    starts: Float[Tensor, " start"]
    ends: Float[Tensor, " start"]
    gradients: Float[Tensor, " start"]


def attracted(weight: float = 3.0, *, n_steps: int = 50, n_each_side: int = 200) -> Attracted:
    """Iterate ``h <- tanh(weight h)`` from everywhere between -1 and 1.

    Above a weight of one there are two attractors. Within the basin of either the gradient
    vanishes, since a small change ends at the same point; on the border between them, at 0, it
    explodes, since it decides which (Bengio, Simard and Frasconi, 1994: a state that stores
    information robustly has vanishing gradients).
    """
    places = torch.arange(-n_each_side, n_each_side + 1, dtype=torch.float64)
    starts = (places / n_each_side).requires_grad_()
    ends = starts
    for _ in range(n_steps):
        ends = torch.tanh(weight * ends)
    (gradients,) = torch.autograd.grad(ends.sum(), starts)
    return Attracted(starts.detach(), ends.detach(), gradients)


def draw_gradient_norms(norms: Mapping[str, Float[Tensor, " states"]]) -> Figure:
    """Gradient norm against time, one line per cell, on a log scale."""
    figure, (panel,) = new_figure(1)
    for name, values in norms.items():
        panel.semilogy(range(len(values)), values.tolist(), label=name)
    panel.axhline(1.0, color="0.6", linewidth=0.8)
    panel.set_xlabel("state before step")
    panel.set_ylabel("length of the gradient")
    panel.legend(fontsize="small")
    return figure


def draw_attracted(found: Attracted) -> Figure:
    """The final value for each start, and the gradient."""
    figure, (left, right) = new_figure(2)
    left.plot(found.starts, found.ends)
    left.set_ylabel("h after the last step")
    right.semilogy(found.starts, found.gradients.clamp_min(1e-30))
    right.set_ylabel("its gradient")
    for panel in (left, right):
        panel.set_xlabel("h before the first step")
    return figure


# Iterated functions.

RATE = 3.5
"""Of the toy function ``3.5 x (1 - x)``: here its orbit has period 4."""


def iterate(
    start: Float[Tensor, "..."], *, n_times: int, rate: float = RATE
) -> Float[Tensor, "..."]:
    """Apply ``f(x) = rate x (1 - x)`` repeatedly to each number.

    A recurrent network does the same with its state, ``h(4) = f(f(f(h(1), x(2)), x(3)), x(4))``.
    The function is very simple, but iterated it consists of steps and spikes: almost everywhere the
    gradient is near zero, and in between it is huge.

    >>> iterate(torch.tensor(0.5), n_times=1)
    tensor(0.8750)
    """
    x = start
    for _ in range(n_times):
        x = rate * x * (1 - x)
    return x


def orbit(
    start: float = 0.3, *, n_before: int = 1000, n_most: int = 64, rate: float = RATE
) -> Float[Tensor, " period"]:
    """The values of the map's final cycle, in the order of visits.

    The lowest is first. Empty when they do not repeat within ``n_most`` (chaos).

    >>> [f"{value:.4f}" for value in orbit()]
    ['0.3828', '0.8269', '0.5009', '0.8750']
    """
    x = iterate(torch.tensor(start, dtype=torch.float64), n_times=n_before, rate=rate)
    visited = [x]
    for _ in range(n_most):
        x = iterate(x, n_times=1, rate=rate)
        if abs(x - visited[0]) < 1e-12:
            values = torch.stack(visited)
            return values.roll(-int(values.argmin()))
        visited.append(x)
    return torch.empty(0, dtype=torch.float64)


def curves(
    n_times: tuple[int, ...] = (1, 2, 3, 50), *, n_points: int = 1001, rate: float = RATE
) -> Float[Tensor, "curve point"]:
    """``f(f(...f(x)))`` at evenly spaced x from 0 to 1: a curve for each number of times."""
    x = torch.linspace(0, 1, n_points, dtype=torch.float64)
    return torch.stack([iterate(x, n_times=n, rate=rate) for n in n_times])


def draw_curves(n_times: tuple[int, ...] = (1, 2, 3, 50), *, rate: float = RATE) -> Figure:
    """The curves side by side: f, f of f, and so on."""
    found = curves(n_times, rate=rate)
    figure, panels = new_figure(len(n_times))
    x = torch.linspace(0, 1, found.shape[1])
    for panel, n, y in zip(panels, n_times, found, strict=True):
        panel.plot(x, y, linewidth=0.8)
        panel.set_title("y = f(x)" if n == 1 else f"f applied {n} times", fontsize="medium")
        panel.set_ylim(0, 1)
        panel.set_xlabel("x")
    return figure


# The slope of tanh for inputs of different variance.


class TanhSlope(NamedTuple):
    """The derivative of tanh at inputs from a normal distribution with mean zero."""

    deviations: Float[Tensor, " deviation"]
    mean: Float[Tensor, " deviation"]
    quarter: Float[Tensor, " deviation"]
    three_quarters: Float[Tensor, " deviation"]


def tanh_slope(
    deviations: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0),
) -> TanhSlope:
    """Mean and quartiles of ``1 - tanh(x)^2`` for each standard deviation of x.

    Cooijmans et al., 2017 (https://arxiv.org/abs/1603.09025), figure 1 (b): why recurrent batch
    normalisation is initialised with a gain of 0.1. With a gain of one tanh saturates, and the
    gradient through it shrinks. We take evenly spaced quantiles instead of random points.
    """
    n = 10_001
    quantiles = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    spread = torch.tensor(deviations, dtype=torch.float64)
    slopes = 1 - torch.tanh(spread[:, None] * torch.special.ndtri(quantiles)).square()
    quarter, three_quarters = torch.quantile(slopes, torch.tensor([0.25, 0.75]).double(), dim=1)
    return TanhSlope(spread, slopes.mean(1), quarter, three_quarters)


def draw_tanh_slope(found: TanhSlope) -> Figure:
    """The mean as a line, the middle half as a band."""
    figure, (panel,) = new_figure(1)
    panel.plot(found.deviations, found.mean)
    panel.fill_between(found.deviations, found.quarter, found.three_quarters, alpha=0.3)
    panel.set_xlabel("standard deviation of the input")
    panel.set_ylabel("derivative of tanh")
    return figure


# Recurrent networks with weights set by hand.


class HandSet(NamedTuple):
    """One linear unit that sums its inputs, and an output function."""

    cell: LinearContextCell
    """The unit: its self-loop has weight one."""
    output_weight: float
    output: Literal["linear", "logistic"]

    def read(self, inputs: Float[Tensor, "batch pos d_input"]) -> Float[Tensor, "batch pos"]:
        """The network's output after each step."""
        hidden = self.cell.unroll(inputs).outputs[:, :, 0]
        total = self.output_weight * hidden
        return total if self.output == "linear" else total.sigmoid()


def summing_rnn() -> HandSet:
    """One input; the output is the sum of all inputs so far. Every weight is 1.

    >>> summing_rnn().read(torch.tensor([[[2.0], [-0.5], [1.0], [1.0]]])).tolist()
    [[2.0, 1.5, 2.5, 3.5]]
    """
    return HandSet(_unit(1.0), 1.0, "linear")


def comparing_rnn() -> HandSet:
    """Two inputs; the output is near 1 while the total of the first is the larger, else near 0.

    The unit sums the first input minus the second (weights 1 and -1); a logistic output with
    weight 5 turns its sign into a decision.

    >>> steps = torch.tensor([[[2.0, -2.0], [0.0, 3.5], [1.0, 2.2]]])
    >>> [f"{value:.2f}" for value in comparing_rnn().read(steps)[0]]
    ['1.00', '0.92', '0.03']
    """
    return HandSet(_unit(1.0, -1.0), 5.0, "logistic")


@torch.no_grad()
def _unit(*weights: float) -> LinearContextCell:
    cell = LinearContextCell(len(weights), 1)
    cell.input_proj.weight.copy_(torch.tensor([weights]))
    return cell.requires_grad_(False)


# Below this an error signal has vanished: its change in one more step is meaningless.
NOTHING = 1e-30


class JacobianPenalty(NamedTuple):
    """How far the steps are from preserving the norm of the error signal."""

    penalty: Float[Tensor, ""]
    """Omega: the mean over the rows of the sum over the steps; add it to the loss."""
    ratios: Float[Tensor, "batch pos"]
    """The factor by which each step changes the norm, backwards. 1 is ideal; NaN: no signal."""


def jacobian_penalty(
    cell: Cell,
    inputs: Float[Tensor, "batch pos d_input"],
    recorded: Recorded,
    *,
    loss: Float[Tensor, ""],
) -> JacobianPenalty:
    """How much each step's Jacobian stretches the actual error signal.

    Pascanu, Mikolov and Bengio, 2013 (https://arxiv.org/abs/1211.5063), equation 9, with s for the
    state and E for the loss::

        Omega = sum_k ( |dE/ds_(k+1) ds_(k+1)/ds_k| / |dE/ds_(k+1)| - 1 )^2

    A quotient of two norms, not the norm of a quotient. It wants a Jacobian that preserves the norm
    in the one direction that matters, so singular values near one, not a determinant of one. As in
    the paper (equation 10) only the step itself is differentiated again: states and error signals
    are constants. All steps of all rows go through the cell together, as one batch. With a state of
    several tensors, norms are over all of them.

    Args:
        recorded: From `record`; the loss must come from its outputs.
    """
    signals = _signals(loss, recorded.states[1:])
    before = _together(recorded.states[:-1])
    before = map_tensors(_as_start, before)
    after = cell.step(inputs.detach().transpose(0, 1).flatten(0, 1), before).state
    starts = [tensor for tensor in tensors_of(before) if tensor.is_floating_point()]
    ends = [tensor for tensor in tensors_of(after) if tensor.is_floating_point()]
    back = torch.autograd.grad(ends, starts, signals, create_graph=True, materialize_grads=True)
    arrived, sent = _squares(back), _squares(signals)
    is_there = sent > NOTHING
    ratio = (arrived / sent.where(is_there, 1.0)).clamp_min(NOTHING).sqrt()
    terms = torch.where(is_there, (ratio - 1).square(), 0.0)
    batch, pos = inputs.shape[:2]
    ratios = ratio.detach().where(is_there, torch.nan).view(pos, batch).T
    return JacobianPenalty(terms.sum() / batch, ratios)


def _signals(loss: Tensor, states: list[Any]) -> list[Tensor]:
    """dE/ds for every tensor of the state, all steps together: [pos * batch, ...]."""
    leaves = [[t for t in tensors_of(state) if t.is_floating_point()] for state in states]
    flat = [tensor for state in leaves for tensor in state]
    grads = torch.autograd.grad(loss, flat, retain_graph=True, materialize_grads=True)
    n = len(leaves[0])
    return [torch.cat(grads[place::n]) for place in range(n)]


def _together(states: list[Any]) -> Any:
    """Many states as one, concatenated along the batch axis."""
    rows = iter(zip(*(tensors_of(state) for state in states), strict=True))
    return map_tensors(lambda _: torch.cat(next(rows)), states[0])


def _squares(tensors: Any) -> Float[Tensor, " n"]:
    return sum((tensor.square().flatten(1).sum(1) for tensor in tensors), start=torch.zeros(()))
