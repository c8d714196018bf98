"""A trace as a picture: what was produced from top to bottom, what was attended from left to right.

The form is that of figure 3 of Bahdanau et al., 2015 (https://arxiv.org/abs/1409.0473), with source
and target as there; heads or hops are side by side.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.errors import MissingPackageError
from saccade.store import atomic_file
from saccade.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL, SMALL_CELL = 0.3, 0.2  # inches, with one view and with many
POINTS = 27.0  # the size of letters in a cell of one inch
MARGIN = 0.9
LARGEST = 40.0  # inches: more than that no viewer opens gladly
LABELS = 60  # on an axis; of more, every second or third is shown
COLOURS = "Blues"  # pale is little: right on paper, in grey, and with any colour vision


def draw_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace as a PNG."""
    figure = trace_figure(trace)
    with atomic_file(path) as temporary, warnings.catch_warnings():
        # A sign that the font does not have is drawn as a box, which is all that can be done.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(temporary, format="png", dpi=130)


def trace_figure(trace: Trace) -> Figure:
    """The same as a matplotlib figure, for notebooks."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a trace needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    columns = math.ceil(math.sqrt(trace.n_views))
    rows = math.ceil(trace.n_views / columns)
    cell = CELL if trace.n_views == 1 else SMALL_CELL
    width = columns * (len(trace.memory) * cell + MARGIN) + MARGIN
    height = rows * (len(trace.steps) * cell + MARGIN) + MARGIN
    scale = min(1.0, LARGEST / width, LARGEST / height)
    size = (max(3.0, width * scale), max(2.5, height * scale))
    figure = Figure(figsize=size, layout="constrained")
    # A canvas of its own instead of pyplot's: no window is opened and nothing stays behind.
    FigureCanvasAgg(figure)
    places = figure.subplots(rows, columns, squeeze=False)
    for at, axes in enumerate(places.flat):
        if at >= trace.n_views:
            axes.set_axis_off()
            continue
        is_left, is_top = at % columns == 0, at < columns
        _matrix(axes, trace, at, has_steps=is_left, has_memory=is_top, fontsize=POINTS * cell)
    if trace.title:
        figure.suptitle(trace.title, fontsize="medium", parse_math=False, wrap=True)
    return figure


def _matrix(
    axes: Axes, trace: Trace, view: int, *, has_steps: bool, has_memory: bool, fontsize: float
) -> None:
    weights = trace.by_view[view].numpy()
    axes.imshow(weights, cmap=COLOURS, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    axes.xaxis.tick_top()
    at, names = _ticks(trace.memory)
    axes.set_xticks(at, names if has_memory else [], rotation=90, fontsize=fontsize)
    at, names = _ticks(trace.steps)
    axes.set_yticks(at, names if has_steps else [], fontsize=fontsize)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a dollar is a dollar
    axes.tick_params(length=0)
    if trace.views:
        axes.set_xlabel(trace.views[view], fontsize=fontsize, parse_math=False)


def _ticks(labels: Sequence[str]) -> tuple[range, list[str]]:
    at = range(0, len(labels), max(1, math.ceil(len(labels) / LABELS)))
    return at, [labels[place] for place in at]
