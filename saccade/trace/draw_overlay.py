"""Weights over the cells of an image, one picture a word.

The form is that of figure 3 of Xu et al., 2015 (https://arxiv.org/abs/1502.03044). Where we differ:
cells are drawn as the squares they are and not blurred, and one scale serves all words, so that a
word which looked nowhere in particular stays pale.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from saccade.trace.image_trace import ImageTrace

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, WIDEST = 1.5, 8.0  # inches of a picture: of its shorter side, and at most
COLUMNS = 6  # pictures in a row
HEAT = (0.85, 0.2, 0.0)  # orange: seen on grey ink, and by those who see no red on grass
STRONGEST = 0.75  # of what lies below, the strongest heat hides so much


def draw_overlays(figure: Figure, trace: ImageTrace, *, only: int | None = None) -> None:
    """Draw the image, and for each step the image with that step's weights on it.

    Args:
        only: That step's picture alone.
    """
    shown = list(range(len(trace.steps))) if only is None else [only]
    n = len(shown) + (only is None)
    width, height = _inches(trace)
    columns = max(1, min(n, COLUMNS, int(COLUMNS * WIDTH // width)))
    rows = math.ceil(n / columns)
    figure.set_size_inches(columns * (width + 0.15) + 0.3, rows * (height + 0.35) + 0.6)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    if only is None:
        _image(places.pop(0), trace)
    for axes, step in zip(places, shown, strict=False):
        _image(axes, trace)
        _heat(axes, trace, step)
        axes.set_title(trace.steps[step], fontsize=9, parse_math=False)
    for axes in places[len(shown) :]:
        axes.set_axis_off()


def _inches(trace: ImageTrace) -> tuple[float, float]:
    """Width and height of one picture."""
    height, width = trace.image.shape[:2]
    scale = min(WIDTH / min(height, width), WIDEST / max(height, width))
    return width * scale, height * scale


def _image(axes: Axes, trace: ImageTrace) -> None:
    # Ink is dark on paper, as in the data's own pages; colours are as they are.
    axes.imshow(_numbers(trace), cmap="Greys", vmin=0.0, vmax=1.0, extent=(-1, 1, 1, -1))
    axes.set(xticks=[], yticks=[], aspect="auto")


def _heat(axes: Axes, trace: ImageTrace, step: int) -> None:
    import numpy as np

    assert trace.heat is not None, "there is something to lay over"
    strongest = max(trace.heat.max().item(), 1e-9)
    heat = trace.heat[step].detach().cpu().float().numpy() / strongest
    coloured = np.empty((*heat.shape, 4))
    coloured[..., :3], coloured[..., 3] = HEAT, STRONGEST * heat
    axes.imshow(coloured, extent=(-1, 1, 1, -1), interpolation="nearest")
    axes.set(aspect="auto")


def _numbers(trace: ImageTrace) -> np.ndarray:
    return trace.image.detach().cpu().float().clamp(0, 1).numpy()
