"""A trace over a document as a picture: its words as they stand, those that were read shaded.

The form is that of figure 3 of Hermann et al., 2015 (https://arxiv.org/abs/1506.03340). The shade
tells a word's weight beside the largest, since a document has too many words for any to have much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Float
from torch import Tensor

from saccade.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

DOCUMENT = "document"
"""The kind of traces whose memory is running text."""
WIDE = 100  # letters in a line
LETTER, LINE = 0.085, 0.22  # inches
POINTS = 8.5  # a letter of a monospaced font is then about LETTER wide
MARGIN = 0.3
DARK = 0.6  # of the largest weight; beyond it ink is white
COLOURS = "Blues"
NO_SPACE_BEFORE = frozenset(".,;:!?)]'")


class Placed(NamedTuple):
    """A word of the document, and where it stands."""

    word: int
    line: int
    column: int


def document_weights(trace: Trace) -> Float[Tensor, " key_pos"]:
    """How much each word was read, on the average of all steps and views."""
    return trace.by_view.mean((0, 1))


def place_words(words: tuple[str, ...], *, wide: int = WIDE) -> list[Placed]:
    """Words in lines of at most ``wide`` letters, marks close to the word before them.

    >>> [(each.line, each.column) for each in place_words(("Ann", ",", "who", "read"), wide=8)]
    [(0, 0), (0, 3), (0, 5), (1, 0)]
    """
    placed, line, column = [], 0, 0
    for number, word in enumerate(words):
        begin = column + (column > 0 and word not in NO_SPACE_BEFORE)
        if column and begin + len(word) > wide:
            line, begin = line + 1, 0
        placed.append(Placed(number, line, begin))
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
    FigureCanvasAgg(figure)  # a canvas of its own: no window is opened and nothing stays behind
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
