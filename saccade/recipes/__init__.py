"""One a reproducible result: system + task + budget + the published number it stands beside."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.recipes.finding import all_recipes, find_recipe, register_recipe
    from saccade.recipes.opened import OpenRun, open_run
    from saccade.recipes.options import SampleOptions, Translated, TranslateOptions
    from saccade.recipes.recipe import Recipe
    from saccade.recipes.running import evaluate_run, train_recipe

# Name -> module: loaded when first used, because some need torch.
_HOMES = {
    "OpenRun": "opened",
    "Recipe": "recipe",
    "SampleOptions": "options",
    "TranslateOptions": "options",
    "Translated": "options",
    "all_recipes": "finding",
    "evaluate_run": "running",
    "find_recipe": "finding",
    "open_run": "opened",
    "register_recipe": "finding",
    "train_recipe": "running",
}
__all__ = [
    "OpenRun",
    "Recipe",
    "SampleOptions",
    "TranslateOptions",
    "Translated",
    "all_recipes",
    "evaluate_run",
    "find_recipe",
    "open_run",
    "register_recipe",
    "train_recipe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"saccade.recipes.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
