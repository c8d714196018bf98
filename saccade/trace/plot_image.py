"""An image trace as a plot and as an animation.

The plot shows the image with every window and the path between their centres, and one column per
step with the pictures of that step. Weights over cells are drawn as overlays of the image, step by
step. The GIF shows one step after the other.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.errors import MissingPackageError
from saccade.store.atomic import atomic_file
from saccade.trace.trace import ImageTrace

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Weights over the cells of an image, one picture per word.
#
# The form is that of figure 3 of Xu et al., 2015 (https://arxiv.org/abs/1502.03044). Where we
# differ: cells are drawn as squares and not blurred, and all words share one scale, so that a word
# with diffuse attention stays pale.

WIDTH, WIDEST = 1.5, 8.0  # inches: shorter side of a picture, and maximum width
COLUMNS = 6  # pictures in a row
HEAT = (0.85, 0.2, 0.0)  # orange: visible on grey, and for red-green colour blindness
STRONGEST = 0.75  # opacity of the largest weight


def draw_overlays(figure: Figure, trace: ImageTrace, *, only: int | None = None) -> None:
    """Draw the image, and for each step the image with that step's weights on it.

    Args:
        only: Draw only this step's picture.
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
    # Grey images are drawn dark on white, as in the data set; colours are unchanged.
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


IMAGE = 3.0  # inches of the image's side
PICTURE = 1.0  # inches of the side of a step's picture
DOTS = 110  # per inch
STEP_SECONDS, LAST_SECONDS = 0.6, 2.0  # duration of a step in a GIF
INK = "Greys"  # dark on white, as in the data set
COLOURS = "plasma"  # order of steps: lightness increases, so it works without colour vision


def draw_image_trace(trace: ImageTrace, path: str | Path) -> None:
    """Write an image trace as a PNG."""
    figure = image_trace_figure(trace)
    with atomic_file(path) as temporary, _ignore_missing_glyphs():
        figure.savefig(temporary, format="png", dpi=DOTS)


def animate_image_trace(trace: ImageTrace, path: str | Path) -> None:
    """Write an image trace as a looping GIF, one frame per step."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError(
            "a GIF needs the package 'pillow'", hint="pip install 'saccade[plot]'"
        ) from error
    frames = []
    with _ignore_missing_glyphs():
        for step in range(len(trace.steps)):
            figure = image_trace_figure(trace, only=step)
            figure.set_dpi(DOTS)
            figure.canvas.draw()
            frames.append(Image.fromarray(_pixels(figure)).convert("RGB"))
    milliseconds = [int(1000 * STEP_SECONDS)] * (len(frames) - 1) + [int(1000 * LAST_SECONDS)]
    first, *others = frames
    with atomic_file(path) as temporary:
        first.save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=others,
            duration=milliseconds,
            loop=0,
        )


def image_trace_figure(trace: ImageTrace, *, only: int | None = None) -> Figure:
    """The same as a matplotlib figure, for notebooks.

    Args:
        only: Draw the state at this step, without later steps.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a trace needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    if trace.heat is not None:
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        draw_overlays(figure, trace, only=only)
        return _titled(figure, trace)
    n_shown = len(trace.steps) if only is None else 1
    n_rows = max(1, len(trace.pictures))
    strip = n_shown * PICTURE if trace.pictures else 0.0
    size = (IMAGE + strip + 0.4, max(IMAGE, n_rows * (PICTURE + 0.3)) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)  # its own canvas: no window, no global state
    left, right = figure, None
    if trace.pictures:
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[IMAGE, strip])[0]
    _look(left.subplots(), trace, only)
    if right is not None:
        grid = right.subplots(n_rows, n_shown, squeeze=False)
        shown = range(len(trace.steps)) if only is None else [only]
        for column, step in enumerate(shown):
            _column(grid[:, column], trace, step, is_first=column == 0)
    return _titled(figure, trace)


def _titled(figure: Figure, trace: ImageTrace) -> Figure:
    if trace.title:
        figure.suptitle(trace.title, fontsize="medium", parse_math=False)
    return figure


def _look(axes: Axes, trace: ImageTrace, only: int | None) -> None:
    """The image, the windows, and the path between their centres."""
    image = trace.image if only is None else trace.image_at(only)
    axes.imshow(image.detach().cpu().numpy(), cmap=INK, vmin=0.0, vmax=1.0, extent=(-1, 1, 1, -1))
    axes.set(xticks=[], yticks=[])
    last = len(trace.steps) - 1 if only is None else only
    if trace.has_path:
        _path(axes, trace, last, only)
    axes.set(xlim=(-1, 1), ylim=(1, -1))
    label = trace.steps[last] if trace.steps else ""
    axes.set_xlabel(label, fontsize=9, parse_math=False)


def _path(axes: Axes, trace: ImageTrace, last: int, only: int | None) -> None:
    centres = trace.centres.detach().cpu()[: last + 1]
    axes.plot(centres[:, 0], centres[:, 1], color="0.5", linewidth=1.0)
    for step in range(last + 1):
        colour = colour_of(step, trace)
        x, y = centres[step].tolist()
        axes.plot(x, y, marker="o", markersize=3, color=colour)
        if only is None or step == only:
            _outline(axes, trace, step, is_alone=only is not None)
            axes.annotate(
                str(step + 1), (x, y), (2, 2), textcoords="offset points", color=colour, fontsize=8
            )


def _outline(axes: Axes, trace: ImageTrace, step: int, *, is_alone: bool) -> None:
    """The windows of a step; with other steps in the plot, all but the main one are faint."""
    from matplotlib.patches import Polygon

    for number, corners in enumerate(trace.outlines[step].detach().cpu().tolist()):
        axes.add_patch(
            Polygon(
                corners,
                closed=True,
                fill=False,
                edgecolor=colour_of(step, trace),
                linewidth=1.5 if number == 0 else 0.7,
                alpha=1.0 if number == 0 or is_alone else 0.3,
            )
        )


def _column(column: list[Axes], trace: ImageTrace, step: int, *, is_first: bool) -> None:
    """The pictures of one step, in a column."""
    for axes, (name, pictures) in zip(column, trace.pictures.items(), strict=True):
        axes.imshow(pictures[step].detach().cpu().numpy(), cmap=INK, vmin=0.0, vmax=1.0)
        axes.set(xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set_color(colour_of(step, trace))
        if is_first:
            axes.set_ylabel(name, fontsize=8, parse_math=False)
    column[0].set_title(f"{step + 1}", fontsize=8, color=colour_of(step, trace))
    column[-1].set_xlabel(trace.steps[step], fontsize=8, parse_math=False)


def colour_of(step: int, trace: ImageTrace) -> tuple[float, float, float]:
    """The colour of a step in all plots of the trace."""
    from matplotlib import colormaps

    red, green, blue, _ = colormaps[COLOURS](0.85 * step / max(1, len(trace.steps) - 1))
    return red, green, blue


def _pixels(figure: Figure) -> np.ndarray:
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    assert isinstance(figure.canvas, FigureCanvasAgg), "drawn on a canvas of our own"
    return np.asarray(figure.canvas.buffer_rgba())


def _ignore_missing_glyphs() -> warnings.catch_warnings:
    """Ignore warnings for characters missing from the font, which are drawn as boxes."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)
