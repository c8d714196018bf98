"""`saccade recipes`: the results that can be had again, and what can be set about each."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options import field_help
from saccade.cli.plugins import load_plugin

if TYPE_CHECKING:
    from saccade.zoo.recipes.recipe import Recipe

EXAMPLES = """
saccade recipes
saccade recipes bahdanau-multi30k --json
"""
FACTS = ("name", "about", "system", "task", "metric", "is_better", "at_least", "published")
MORE_FACTS = ("beside", "source", "note", "minutes")


def run(
    name: Annotated[
        str | None, typer.Argument(help="Show one recipe with all that can be set.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with a recipe of your own.")
    ] = None,
) -> None:
    """List the recipes: a system, a task, a budget, and the published number it stands beside."""
    load_plugin(plugin)

    from saccade.zoo.recipes.finding import all_recipes, find_recipe

    if name is not None:
        recipe = find_recipe(name)
        typer.echo(json.dumps(_all_of(recipe)) if as_json else _page(recipe))
        return
    recipes = list(all_recipes().values())
    if as_json:
        typer.echo(json.dumps([_facts(recipe) for recipe in recipes]))
    else:
        _show(recipes)


def wanted(recipe: Recipe) -> str:
    """What a recipe should reach, in words."""
    if recipe.at_least is None:
        return ""
    return f"{recipe.bound} {recipe.at_least:g}"


def _beside(recipe: Recipe, name: str) -> str:
    """Another figure of the recipe, and what it should reach."""
    held = recipe.beside[name]
    return name if held is None else f"{name} ({recipe.bound} {held:g})"


def _facts(recipe: Recipe) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in (*FACTS, *MORE_FACTS)}


def _all_of(recipe: Recipe) -> dict[str, Any]:
    settings = [{"key": k, "value": v, "help": h} for k, v, h in _settings(recipe.settings)]
    return {**_facts(recipe), "settings": settings}


def _settings(settings: Any, prefix: str = "") -> list[tuple[str, Any, str]]:
    """Each setting with its value and the string under its field."""
    rows, helps = [], field_help(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            rows += _settings(value, f"{prefix}{field.name}.")
        else:
            rows.append((f"{prefix}{field.name}", value, helps.get(field.name, "")))
    return rows


def _page(recipe: Recipe) -> str:
    published = "" if recipe.published is None else f"{recipe.published:g} ({recipe.source})"
    rows = {
        recipe.name: recipe.about,
        "system": recipe.system,
        "task": recipe.task,
        "metric": recipe.metric,
        "wanted": wanted(recipe),
        "beside": ", ".join(map(partial(_beside, recipe), recipe.beside)),
        "published": published,
        "minutes": f"{recipe.minutes:g} on two cores",
        "note": recipe.note,
    }
    width = max(len(name) for name in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows.items() if value]
    settings = _settings(recipe.settings)
    width = max(len(f"{key}={value}") for key, value, _ in settings)
    lines += ["", "--set"]
    return "\n".join([*lines, *(f"  {f'{k}={v}':<{width}}  {help_}" for k, v, help_ in settings)])


def _show(recipes: list[Recipe]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # What each is about stands below, so that the figures keep to their columns at any width.
    table = Table(box=box.SIMPLE)
    for name in ("recipe", "metric", "wanted", "published", "minutes"):
        table.add_column(name, no_wrap=True, justify="right" if name == "minutes" else "left")
    console = Console(highlight=False)
    for recipe in recipes:
        published = "" if recipe.published is None else f"{recipe.published:g}"
        cells = (recipe.name, recipe.metric, wanted(recipe), published)
        table.add_row(*cells, f"{recipe.minutes:g}")
    console.print(table)
    for recipe in recipes:
        console.print(f"  [bold]{recipe.name}[/bold]  {recipe.about}", soft_wrap=True)
