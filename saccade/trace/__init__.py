"""The record of where attention went: saved, loaded, drawn."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.trace.draw import draw_trace, trace_figure
    from saccade.trace.draw_image import animate_image_trace, draw_image_trace, image_trace_figure
    from saccade.trace.files import load_trace, save_trace
    from saccade.trace.html import trace_html
    from saccade.trace.image_trace import ImageTrace, affine_outlines, window_outlines
    from saccade.trace.trace import Trace

# Name -> module: loaded when first used, because they need torch or matplotlib.
_HOMES = {
    "ImageTrace": "image_trace",
    "Trace": "trace",
    "affine_outlines": "image_trace",
    "animate_image_trace": "draw_image",
    "draw_image_trace": "draw_image",
    "draw_trace": "draw",
    "image_trace_figure": "draw_image",
    "load_trace": "files",
    "save_trace": "files",
    "trace_figure": "draw",
    "trace_html": "html",
    "window_outlines": "image_trace",
}
__all__ = [
    "ImageTrace",
    "Trace",
    "affine_outlines",
    "animate_image_trace",
    "draw_image_trace",
    "draw_trace",
    "image_trace_figure",
    "load_trace",
    "save_trace",
    "trace_figure",
    "trace_html",
    "window_outlines",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"saccade.trace.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
