"""A picture of one measure for every head: layers x heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from saccade.errors import MissingPackageError
from saccade.store import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure

CELL, MARGIN = 0.22, 2.2  # inches
# Both can be told apart with any colour vision, and in grey.
ONE_WAY, TWO_WAY = "viridis", "PuOr"


class Axes(NamedTuple):
    """What the axes of a map are called."""

    across: str = "head"
    up: str = "layer"


HEADS = Axes()


def save_heat_map(
    path: str | Path,
    rows: Mapping[int, Float[Tensor, " head"]],
    *,
    title: str,
    label: str,
    axes: Axes = HEADS,
    most: float | None = None,
) -> None:
    """Write a PNG of one figure for each head, a row for each layer, the first layer lowest.

    Figures well on both sides of zero get colours that meet there. Layers may differ in their
    number of heads.

    Args:
        rows: layer -> one figure a head, as `Scores.by_layer` gives them.
        label: what the colours mean, with its unit.
        axes: where the rows are something else than heads.
        most: where the colours end; figures beyond it, however large, have the last one.
    """
    _save(draw_heat_map(rows, title=title, label=label, axes=axes, most=most), path)


def save_heat_maps(
    path: str | Path, measures: Mapping[Any, Mapping[int, Float[Tensor, " head"]]], *, title: str
) -> None:
    """Write a PNG of several measures side by side, each with colours of its own.

    Args:
        measures: what each is called -> layer -> one figure a head.
    """
    shapes = [_grid(rows).shape for rows in measures.values()]
    width = sum(max(3.0, n_heads * CELL + MARGIN) for _, n_heads in shapes)
    figure = _new_figure(width, max(n_layers for n_layers, _ in shapes))
    figure.suptitle(title, fontsize="medium")
    plots = figure.subplots(1, len(shapes), squeeze=False)[0]
    for plot, (name, rows) in zip(plots, measures.items(), strict=True):
        _draw(figure, plot, rows, title=name)
    _save(figure, path)


def draw_heat_map(
    rows: Mapping[int, Float[Tensor, " head"]],
    *,
    title: str,
    label: str,
    axes: Axes = HEADS,
    most: float | None = None,
) -> Figure:
    """The same as a matplotlib figure, for notebooks."""
    n_layers, n_heads = _grid(rows).shape
    figure = _new_figure(max(5.0, n_heads * CELL + MARGIN), n_layers)
    _draw(figure, figure.add_subplot(), rows, title=title, label=label, axes=axes, most=most)
    return figure


def _new_figure(width: float, n_layers: int) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a heat map needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    figure = Figure(figsize=(width, max(3.0, n_layers * CELL + MARGIN)), layout="constrained")
    # A canvas of its own instead of pyplot's: no window is opened and nothing stays behind.
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: str | Path) -> None:
    with atomic_file(path) as temporary:
        # Whatever the name ends in, it is a PNG.
        figure.savefig(temporary, format="png", dpi=150)


def _draw(
    figure: Figure,
    plot: Plot,
    rows: Mapping[int, Tensor],
    *,
    title: str,
    label: str = "",
    axes: Axes = HEADS,
    most: float | None = None,
) -> None:
    layers, grid = sorted(rows), _grid(rows)
    n_layers, n_heads = grid.shape
    low, high, colours = _range(grid if most is None else grid.clip(max=most))
    image = plot.imshow(
        grid,
        origin="lower",
        aspect="auto",
        cmap=colours,
        vmin=low,
        vmax=high,
        interpolation="nearest",
    )
    plot.set_facecolor("0.85")  # where a layer has no such head
    plot.set_title(title, fontsize="medium", wrap=True)
    plot.set_xlabel(axes.across)
    plot.set_ylabel(axes.up)
    plot.set_xticks(_ticks(n_heads))
    places = _ticks(n_layers)
    plot.set_yticks(places, [str(layers[place]) for place in places])
    goes_on = most is not None and bool((grid > most).any())
    figure.colorbar(image, ax=plot, label=label, extend="max" if goes_on else "neither")


def _grid(rows: Mapping[int, Tensor]) -> np.ndarray:
    widest = max(len(row) for row in rows.values())
    grid = np.full((len(rows), widest), np.nan)
    for place, layer in enumerate(sorted(rows)):
        grid[place, : len(rows[layer])] = rows[layer].tolist()
    return grid


def _range(grid: np.ndarray) -> tuple[float, float, str]:
    known = grid[np.isfinite(grid)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    # Some heads hardly below zero are no reason to spend half of the colours on them.
    if -low > high / 20 > 0:
        most = max(-low, high)
        return -most, most, TWO_WAY
    return low, high, ONE_WAY


def _ticks(n: int) -> list[int]:
    """Whole numbers from 0, few enough to be read."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, n) if n <= 16 * step)
    return list(range(0, n, step))
