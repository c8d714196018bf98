"""The record of where attention went: saved, loaded, drawn."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.trace.draw import draw_trace, trace_figure
    from saccade.trace.files import load_trace, save_trace
    from saccade.trace.html import trace_html
    from saccade.trace.trace import Trace

# Name -> module: loaded when first used, because they need torch or matplotlib.
_HOMES = {
    "Trace": "trace",
    "draw_trace": "draw",
    "load_trace": "files",
    "save_trace": "files",
    "trace_figure": "draw",
    "trace_html": "html",
}
__all__ = ["Trace", "draw_trace", "load_trace", "save_trace", "trace_figure", "trace_html"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"saccade.trace.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
