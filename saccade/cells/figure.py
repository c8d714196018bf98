"""An empty matplotlib figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (3.6, 3.0)  # inches


def new_figure(n_panels: int) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels side by side. No window is opened and nothing stays behind."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    figure = Figure(figsize=(PANEL[0] * n_panels, PANEL[1]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, n_panels, squeeze=False)
    return figure, list(panels[0])
