"""`saccade systems`: every system, where it is, and what it reached beside what was published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.zoo.recipes.systems import Standing, System

SYSTEMS_EXAMPLES = """
saccade systems
saccade systems M --json
"""


def systems(
    group: Annotated[
        str | None,
        typer.Argument(metavar="NUMBER", help="Show one system (M7), or those of a letter (M)."),
    ] = None,
    results: Annotated[Path, typer.Option(help="The folder with results.json.")] = Path("docs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every system: its file, its recipes, the published number and ours.

    Ours are those of results.json, which `saccade results` writes.
    """
    from saccade.zoo.recipes.registry import list_recipes
    from saccade.zoo.recipes.results import JSON_FILE, read_results
    from saccade.zoo.recipes.systems import all_systems, as_dict, standings

    chosen = _chosen(all_systems(), group)
    if not (results / JSON_FILE).exists():
        typer.echo(f"no {results / JSON_FILE} here: our numbers are left out", err=True)
    rows, recipes = read_results(results), list_recipes()
    found = [(each, standings(each, recipes, rows)) for each in chosen]
    if as_json:
        typer.echo(json.dumps([as_dict(*each) for each in found], ensure_ascii=False))
        return
    for number, (system, reached) in enumerate(found):
        if number == 0 or system.group != chosen[number - 1].group:
            typer.echo(f"\n{system.group}\n" if number else f"{system.group}\n")
        typer.echo("\n".join(_lines(system, reached)))


def _chosen(systems: list[System], group: str | None) -> list[System]:
    if group is None:
        return systems
    wanted = group.upper()
    chosen = [each for each in systems if wanted in (each.number, each.number[0])]
    if not chosen:
        letters = ", ".join(dict.fromkeys(each.number[0] for each in systems))
        raise UsageError(
            f"no system has the number {group!r}", hint=f"a letter is one of {letters}"
        )
    return chosen


def _lines(system: System, reached: Sequence[Standing]) -> list[str]:
    """A system in lines: its name, its files, each recipe with both numbers, its commands."""
    about = [f"saccade/{file}" for file in system.files]
    about += [f"saccade train {each.recipe}  {_numbers(each)}" for each in reached]
    about += [f"saccade {command}" for command in system.commands]
    about += [f"published: {system.published}"] if system.published else []
    about += [system.note] if system.note else []
    return [f"{system.number:<4} {system.name}", *(f"       {line}" for line in about)]


def _numbers(standing: Standing) -> str:
    published = "" if standing.published is None else f"published {standing.published:.4g}, "
    ours = "not run yet" if standing.ours is None else f"ours {standing.ours:.4g}"
    return f"({standing.metric}: {published}{ours})"
