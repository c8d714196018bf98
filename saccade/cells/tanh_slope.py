"""How steep tanh is, by the spread of what it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.cells.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    normalisation begins with a gain of 0.1. A gain of one feeds tanh where it is flat, and what
    passes back through it shrinks. We take evenly spaced quantiles instead of random points.
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
