"""A trace as a picture: what was produced from top to bottom, what was attended from left to right.

The form is that of figure 3 of Bahdanau et al., 2015 (https://arxiv.org/abs/1409.0473), with source
and target as there; heads are side by side. Where whole sentences were attended to, these are from
top to bottom, and hops from left to right. A trace over a document is its text, shaded.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.errors import MissingPackageError
from saccade.store import atomic_file
from saccade.trace.draw_document import DOCUMENT, document_figure
from saccade.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL, SMALL_CELL = 0.3, 0.2  # inches, with one view and with many
POINTS = 27.0  # the size of letters in a cell of one inch
MARGIN = 0.9
LETTER = 0.2  # of a cell's side: how wide a letter of that size is
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
    if trace.kind == DOCUMENT:
        return document_figure(trace)
    columns = math.ceil(math.sqrt(trace.n_views))
    rows = math.ceil(trace.n_views / columns)
    cell = CELL if trace.n_views == 1 else SMALL_CELL
    down, across = _sides(trace)
    # Names on the left are lines of text; those above are turned and take what is left.
    text = max(map(len, down), default=0) * cell * LETTER if trace.is_upright else 0.0
    width = columns * (len(across) * cell + MARGIN) + MARGIN + text
    height = rows * (len(down) * cell + MARGIN) + MARGIN
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
        _matrix(axes, trace, at, has_down=is_left, has_across=is_top, fontsize=POINTS * cell)
    if trace.title:
        figure.suptitle(trace.title, fontsize="medium", parse_math=False, wrap=True)
    return figure


def _matrix(
    axes: Axes, trace: Trace, view: int, *, has_down: bool, has_across: bool, fontsize: float
) -> None:
    by_step = trace.by_view[view]
    weights = (by_step.T if trace.is_upright else by_step).numpy()
    down, across = _sides(trace)
    axes.imshow(weights, cmap=COLOURS, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    axes.xaxis.tick_top()
    at, names = _ticks(across)
    axes.set_xticks(at, names if has_across else [], rotation=90, fontsize=fontsize)
    at, names = _ticks(down)
    axes.set_yticks(at, names if has_down else [], fontsize=fontsize)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a dollar is a dollar
    axes.tick_params(length=0)
    if trace.views:
        axes.set_xlabel(trace.views[view], fontsize=fontsize, parse_math=False)


def _sides(trace: Trace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names from top to bottom, and those from left to right."""
    return (trace.memory, trace.steps) if trace.is_upright else (trace.steps, trace.memory)


def _ticks(labels: Sequence[str]) -> tuple[range, list[str]]:
    at = range(0, len(labels), max(1, math.ceil(len(labels) / LABELS)))
    return at, [labels[place] for place in at]
