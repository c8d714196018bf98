"""All recipes: those in this folder, and those that a plugin registers."""

from __future__ import annotations

import difflib
import pkgutil
from importlib import import_module

import saccade.zoo.recipes
from saccade.errors import RecipeError
from saccade.zoo.recipes.recipe import Recipe

# What holds recipes up; every other module here is one, or some.
FRAME = frozenset(
    {
        "answering",
        "by_length",
        "captioning",
        "coders",
        "digit_settings",
        "describing",
        "drawing",
        "drawling",
        "executing",
        "finding",
        "fixating",
        "gallery",
        "glimpsing",
        "hearing",
        "language_model",
        "language_modelling",
        "ngram_counting",
        "opened",
        "options",
        "overlays",
        "parsing",
        "pen_reading",
        "photograph_baselines",
        "photographs",
        "reading_books",
        "reading_digits",
        "recipe",
        "remembering",
        "rescoring",
        "results",
        "running",
        "seeing",
        "settings",
        "sounds",
        "spotting",
        "stories",
        "systems",
        "tapes",
        "taping",
        "transcribing",
        "translating",
        "translation",
        "tree_sorting",
    }
)
_REGISTERED: dict[str, Recipe] = {}


def register_recipe(recipe: Recipe) -> None:
    """Make a recipe of one's own known to every command; see `--plugin`."""
    _REGISTERED[recipe.name] = recipe


def all_recipes() -> dict[str, Recipe]:
    """Every recipe by its name, in the order of the names."""
    modules = [
        import_module(f"saccade.zoo.recipes.{module.name}")
        for module in pkgutil.iter_modules(saccade.zoo.recipes.__path__)
        if module.name not in FRAME
    ]
    found = [recipe for module in modules for recipe in module.RECIPES]
    names = {recipe.name: recipe for recipe in found}
    assert len(names) == len(found), "two recipes have one name"
    return dict(sorted({**names, **_REGISTERED}.items()))


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; refuses an unknown one with the nearest that is known."""
    recipes = all_recipes()
    if name in recipes:
        return recipes[name]
    near = difflib.get_close_matches(name, recipes, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`saccade recipes` lists them."
    raise RecipeError(
        f"there is no recipe {name!r}", hint=f"{hint} One of your own needs --plugin FILE"
    )
