"""The page and its small server: draws readings and traces, holds no model code."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.viewer.notebook import Shown, show

# Name -> module: loaded when first used, because it needs torch.
_HOMES = {"Shown": "notebook", "show": "notebook"}
__all__ = ["Shown", "show"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"saccade.viewer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
