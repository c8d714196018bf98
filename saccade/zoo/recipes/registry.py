"""All recipes: those of this package, by the index, and those that a plugin registers.

Families import torch, which takes seconds. So `index.json` repeats what a list of recipes shows,
and says which module has each of them; only that one is imported when a recipe is used.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path

from saccade.errors import RecipeError, suggest
from saccade.zoo.recipes.recipe import Facts, Recipe

INDEX = "index.json"
_REGISTERED: dict[str, Recipe] = {}


@dataclass(frozen=True, kw_only=True)
class Entry(Facts):
    """What the index says of a recipe."""

    module: str
    """The module of `saccade.zoo.recipes` that has it; none for one of a plugin's."""
    can_trace: bool

    @classmethod
    def of(cls, recipe: Recipe, module: str = "") -> Entry:
        """The entry of a recipe."""
        facts = {field.name: getattr(recipe, field.name) for field in fields(Facts)}
        return cls(**facts, module=module, can_trace=recipe.can_trace)


def register_recipe(recipe: Recipe) -> None:
    """Make a recipe of one's own known to every command; see `--plugin`."""
    _REGISTERED[recipe.name] = recipe


def list_recipes() -> dict[str, Entry]:
    """What there is, by name, in the order of the names; imports no model."""
    own = {name: Entry.of(recipe) for name, recipe in _REGISTERED.items()}
    return dict(sorted({**_index(), **own}.items()))


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; refuses an unknown one with the nearest that is known."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _index():
        module = import_module(f"saccade.zoo.recipes.{_index()[name].module}")
        return next(recipe for recipe in module.RECIPES if recipe.name == name)
    hint = suggest(name, list_recipes()) or "`saccade recipes` lists them."
    raise RecipeError(
        f"there is no recipe {name!r}", hint=f"{hint} One of your own needs --plugin FILE"
    )


def all_recipes() -> dict[str, Recipe]:
    """Every recipe itself, by name; imports all families."""
    return {name: find_recipe(name) for name in list_recipes()}


def families() -> dict[str, tuple[Recipe, ...]]:
    """The recipes of each module of this package that has some: what the index is made from."""
    found = {}
    for path in sorted(Path(str(files("saccade.zoo.recipes"))).glob("*.py")):
        if path.stem != "__init__":
            module = import_module(f"saccade.zoo.recipes.{path.stem}")
            if recipes := getattr(module, "RECIPES", ()):
                found[path.stem] = recipes
    return found


def written_index() -> str:
    """What `index.json` should hold."""
    entries = [
        Entry.of(recipe, module) for module, recipes in families().items() for recipe in recipes
    ]
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names), "two recipes have one name"
    rows = [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.name)]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


@cache
def _index() -> dict[str, Entry]:
    text = files("saccade.zoo.recipes").joinpath(INDEX).read_text(encoding="utf-8")
    rows = json.loads(text)
    return {row["name"]: Entry(**{**row, "gallery": tuple(row["gallery"])}) for row in rows}
