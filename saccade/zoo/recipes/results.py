"""Results: what runs reached beside what was published, as JSON and as a page made from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from saccade.errors import RecipeError, StoreError
from saccade.store.atomic import atomic_file
from saccade.store.schema import conform, parse_json
from saccade.zoo.recipes.recipe import Facts
from saccade.zoo.recipes.registry import list_recipes
from saccade.zoo.training.run_folder import RunFolder

JSON_FILE, PAGE_FILE = "results.json", "results.md"
HEAD = """\
# Results

Our numbers beside the published ones, each with the command that makes it and its minutes on two
CPU cores. `saccade results` writes this page from the run folders; `results.json` has the same, and
the commit of each.

"""
COLUMNS = ("recipe", "metric", "ours", "published", "minutes", "command", "note")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result."""

    recipe: str
    metric: str
    value: float
    published: float | None
    source: str
    minutes: float
    command: str
    commit: str
    note: str


@dataclass(frozen=True)
class Rows:
    """What results.json holds."""

    rows: tuple[Row, ...]


def row_of(folder: Path, recipes: Mapping[str, Facts]) -> Row:
    """The result of a run, which must have come to its end."""
    run = RunFolder(folder)
    manifest, figures = run.manifest, run.figures
    if "value" not in figures:
        raise RecipeError(
            f"{folder} has no figure yet",
            hint="`saccade train ... --resume` goes on with it, `saccade eval RUN` evaluates it",
        )
    name = manifest.get("recipe", "no recipe")
    if name not in recipes:
        raise RecipeError(
            f"{folder} is a run of {name}, which is not known here",
            hint="a recipe of your own needs --plugin FILE",
        )
    recipe = recipes[name]
    if together := len(manifest.get("runs", ())):
        # What was published, and what is wanted, is of one system, not of several together.
        recipe = replace(recipe, name=f"{name} x {together}", published=None, source="")
        note = f"An ensemble of {together} runs."
        recipe = replace(recipe, at_least=None, beside={}, note=note)
    return Row(
        recipe=recipe.name,
        metric=figures.get("metric", recipe.metric),
        value=round(figures["value"], 4),
        published=recipe.published,
        source=recipe.source,
        minutes=round(figures.get("minutes", 0.0), 1),
        command=manifest["command"],
        commit=manifest["commit"],
        note=_note(recipe, figures),
    )


def gather_results(folders: Iterable[Path], *, kept: Sequence[Row] = ()) -> list[Row]:
    """A row for each recipe, by name: of several runs the one that was evaluated last.

    Args:
        kept: rows of before; those of recipes that have no run here stay.
    """
    recipes = list_recipes()
    by_age = sorted(folders, key=lambda folder: RunFolder(folder).figures.get("evaluated", ""))
    rows = {row.recipe: row for row in (*kept, *(row_of(path, recipes) for path in by_age))}
    return [rows[name] for name in sorted(rows)]


def read_results(folder: Path) -> list[Row]:
    """The rows that were written before; none if there are none."""
    file = folder / JSON_FILE
    if not file.exists():
        return []
    try:
        rows = parse_json(file.read_bytes(), where=file)
        return list(conform(Rows, {"rows": rows}, where=file).rows)
    except (OSError, StoreError) as error:
        raise RecipeError(
            f"{file} cannot be read: {error}", hint="move it away to begin a new one"
        ) from error


def write_results(folder: Path, rows: Sequence[Row]) -> None:
    """Write ``results.json`` and ``results.md``."""
    text = json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n"
    for name, content in ((JSON_FILE, text), (PAGE_FILE, results_page(rows))):
        with atomic_file(folder / name) as temporary:
            temporary.write_text(content, encoding="utf-8")


def results_page(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        published = "" if row.published is None else f"{_figure(row.published)} ({row.source})"
        cells = (
            f"`{row.recipe}`",
            row.metric,
            f"**{_figure(row.value)}**",
            published,
            f"{row.minutes:g}",
            f"`{row.command}`",
            row.note,
        )
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return HEAD + "\n".join(lines) + "\n"


def _note(recipe: Facts, figures: Mapping[str, Any]) -> str:
    parts = []
    if recipe.at_least is not None:
        wanted = _wanted(recipe, figures["value"], recipe.at_least)
        parts.append(f"{wanted[0].upper()}{wanted[1:]}.")
    found = figures.get("test", {})
    beside = [
        _beside(recipe, name, found[name]) for name in recipe.beside if found.get(name) is not None
    ]
    if beside:
        parts.append(f"{', '.join(beside)}.")
    return " ".join([*parts, recipe.note]).strip()


def _beside(recipe: Facts, name: str, value: float) -> str:
    """Another figure than the recipe's own."""
    told, wanted = f"`{name}`: {_figure(value)}", recipe.beside[name]
    return told if wanted is None else f"{told} ({_wanted(recipe, value, wanted)})"


def _wanted(recipe: Facts, value: float, wanted: float) -> str:
    said = f"wanted: {recipe.bound} {_figure(wanted)}"
    return said if recipe.reaches(value, wanted) else f"{said}; **not reached**"


def _figure(value: Any) -> str:
    return f"{value:.4g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
