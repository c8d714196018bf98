"""A trace as a plot: outputs from top to bottom, attended inputs from left to right.

The form is that of figure 3 of Bahdanau et al., 2015 (https://arxiv.org/abs/1409.0473), with source
and target on the same axes; heads are side by side. Attended sentences go from top to bottom, and
hops from left to right. A trace over a document is its text, shaded.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Float
from torch import Tensor

from saccade.errors import MissingPackageError
from saccade.store.atomic import atomic_file
from saccade.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text


# A trace over a document as a plot: its text, with attended words shaded.
#
# The form is that of figure 3 of Hermann et al., 2015 (https://arxiv.org/abs/1506.03340). The shade
# is a word's weight relative to the largest, since in a document every weight is small.

DOCUMENT = "document"
"""The kind of traces whose memory is running text."""
WIDE = 100  # letters in a line
LETTER, LINE = 0.085, 0.22  # inches
POINTS = 8.5  # a letter of a monospaced font is then about LETTER wide
MARGIN = 0.3
DARK = 0.6  # of the largest weight; above it text is white
COLOURS = "Blues"  # pale is small: readable in print, in grey, and with any colour vision
NO_SPACE_BEFORE = frozenset(".,;:!?)]'")


class PlacedWord(NamedTuple):
    """A word of the document and its position."""

    word: int
    line: int
    column: int


def document_weights(trace: Trace) -> Float[Tensor, " key_pos"]:
    """The weight of each word, averaged over all steps and views."""
    return trace.by_view.mean((0, 1))


def place_words(words: tuple[str, ...], *, wide: int = WIDE) -> list[PlacedWord]:
    """Words in lines of at most ``wide`` characters; punctuation follows its word without a space.

    >>> [(each.line, each.column) for each in place_words(("Ann", ",", "who", "read"), wide=8)]
    [(0, 0), (0, 3), (0, 5), (1, 0)]
    """
    placed, line, column = [], 0, 0
    for number, word in enumerate(words):
        begin = column + (column > 0 and word not in NO_SPACE_BEFORE)
        if column and begin + len(word) > wide:
            line, begin = line + 1, 0
        placed.append(PlacedWord(number, line, begin))
        column = begin + len(word)
    return placed


def document_figure(trace: Trace) -> Figure:
    """The document, and its title above it."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    weights = document_weights(trace)
    shares = (weights / weights.max().clamp_min(1e-9)).tolist()
    title = (*trace.title.split(), f"(darkest: {weights.max():.0%})")
    above, placed = place_words(title), place_words(trace.memory)
    begin = above[-1].line + 2  # one line is left empty
    n_lines = begin + placed[-1].line + 1
    width, height = WIDE * LETTER + 2 * MARGIN, n_lines * LINE + 2 * MARGIN
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)  # its own canvas: no window, no global state
    x, y = MARGIN / width, MARGIN / height
    axes = figure.add_axes((x, y, 1 - 2 * x, 1 - 2 * y))
    axes.set(xlim=(0, WIDE), ylim=(n_lines, 0))
    axes.set_axis_off()
    for word, line, column in above:
        _write(axes, title[word], line=line, column=column).set_fontweight("bold")
    for word, line, column in placed:
        written = _write(axes, trace.memory[word], line=begin + line, column=column)
        written.set_color("white" if shares[word] > DARK else "black")
        colour = colormaps[COLOURS](shares[word])
        written.set_bbox({"pad": 0.8, "linewidth": 0, "facecolor": colour})
    return figure


def _write(axes: Axes, text: str, *, line: int, column: int) -> Text:
    """A word in a grid of lines and letters."""
    place = (column, line + 0.5)
    return axes.text(
        *place, text, family="monospace", fontsize=POINTS, va="center", parse_math=False
    )


CELL, SMALL_CELL = 0.3, 0.2  # inches, with one view and with many
CELL_POINTS = 27.0  # font size in a cell of one inch
CELL_MARGIN = 0.9
CELL_LETTER = 0.2  # of a cell's side: width of a letter of that size
LARGEST = 40.0  # inches: image viewers are slow above this
LABELS = 60  # on an axis; beyond that only every second or third is shown


def draw_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace as a PNG."""
    figure = trace_figure(trace)
    with atomic_file(path) as temporary, warnings.catch_warnings():
        # A character missing from the font is drawn as a box.
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
    # Labels on the left are horizontal; those above are rotated and take the remaining height.
    text = max(map(len, down), default=0) * cell * CELL_LETTER if trace.is_upright else 0.0
    width = columns * (len(across) * cell + CELL_MARGIN) + CELL_MARGIN + text
    height = rows * (len(down) * cell + CELL_MARGIN) + CELL_MARGIN
    scale = min(1.0, LARGEST / width, LARGEST / height)
    size = (max(3.0, width * scale), max(2.5, height * scale))
    figure = Figure(figsize=size, layout="constrained")
    # Its own canvas instead of pyplot's: no window, no global state.
    FigureCanvasAgg(figure)
    places = figure.subplots(rows, columns, squeeze=False)
    for at, axes in enumerate(places.flat):
        if at >= trace.n_views:
            axes.set_axis_off()
            continue
        is_left, is_top = at % columns == 0, at < columns
        _matrix(axes, trace, at, has_down=is_left, has_across=is_top, fontsize=CELL_POINTS * cell)
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
        label.set_parse_math(False)  # no TeX: a dollar sign is literal
    axes.tick_params(length=0)
    if trace.views:
        axes.set_xlabel(trace.views[view], fontsize=fontsize, parse_math=False)


def _sides(trace: Trace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels from top to bottom, and those from left to right."""
    return (trace.memory, trace.steps) if trace.is_upright else (trace.steps, trace.memory)


def _ticks(labels: Sequence[str]) -> tuple[range, list[str]]:
    at = range(0, len(labels), max(1, math.ceil(len(labels) / LABELS)))
    return at, [labels[place] for place in at]
