"""The log of a run as a picture: the loss, and below it the validation's score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.errors import MissingPackageError
from saccade.store import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 8.0, 3.0  # inches, of one panel


def save_curves(
    path: Path, lines: Sequence[Mapping[str, Any]], *, score: str, title: str = ""
) -> None:
    """Write a PNG of a log's lines.

    Args:
        score: which of the validation's scores to draw.
    """
    figure = draw_curves(lines, score=score, title=title)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def draw_curves(lines: Sequence[Mapping[str, Any]], *, score: str, title: str = "") -> Figure:
    """The same as a matplotlib figure, for notebooks."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a curve needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    steps = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    scores = [
        (line["step"], line["validation"].get(score)) for line in lines if "validation" in line
    ]
    panels = [("loss", steps, "-")] if steps else []
    panels += [(f"validation: {score}", scores, "o-")] if scores else []
    n_panels = max(1, len(panels))
    figure = Figure(figsize=(WIDTH, HEIGHT * n_panels), layout="constrained")
    # A canvas of its own instead of pyplot's: no window is opened and nothing stays behind.
    FigureCanvasAgg(figure)
    axes = figure.subplots(n_panels, 1, sharex=True, squeeze=False)[:, 0]
    for place, (name, points, style) in zip(axes, panels, strict=False):
        _panel(place, name, points, style)
    axes[-1].set_xlabel("step")
    if title:
        figure.suptitle(title, fontsize="medium", parse_math=False)
    return figure


def _panel(axes: Axes, name: str, points: Sequence[tuple[int, Any]], style: str) -> None:
    known = [(step, value) for step, value in points if value is not None]
    axes.plot(*zip(*known, strict=True), style, linewidth=1, markersize=3) if known else None
    axes.set_ylabel(name, parse_math=False)
    axes.grid(alpha=0.3)
