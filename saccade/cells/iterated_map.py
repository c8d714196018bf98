"""What becomes of a function that is applied again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.cells.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = 3.5
"""Of the toy function ``3.5 x (1 - x)``: here its orbit has period 4."""


def iterate(
    start: Float[Tensor, "..."], *, n_times: int, rate: float = RATE
) -> Float[Tensor, "..."]:
    """Apply ``f(x) = rate x (1 - x)`` so many times, to each number.

    A recurrent network does the same with its state, ``h(4) = f(f(f(h(1), x(2)), x(3)), x(4))``.
    The function is as plain as can be, and iterated it is steps and spikes: almost everywhere the
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
    """The values between which the map ends up going round, in the order it visits them.

    The lowest stands first. Empty when they do not repeat within ``n_most`` (chaos).

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
