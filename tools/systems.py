"""Write the page of all systems: files, commands, published numbers and ours.

    python tools/systems.py
    python tools/systems.py --out /tmp/systems.md --json

Writes `docs/systems.md` from `systems.json` in this folder and from `docs/results.json`, which
`tools/results.py` writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from results import JSON_FILE, read_results, table_row
from saccade.cli.main import Command
from saccade.store.atomic import atomic_file
from saccade.zoo.recipes.recipe import Facts, list_recipes
from saccade.zoo.recipes.run import Result
from script import run_script

EXAMPLES = """
python tools/systems.py
python tools/systems.py --out /tmp/systems.md --json
"""
LIST = Path(__file__).with_suffix(".json")
GROUPS = {
    "Z": "Attention heads of a language model",
    "R": "Recurrent cells",
    "T": "Training and diagnostics of sequence models",
    "L": "Language models",
    "S": "Sequence to sequence",
    "A": "Attention",
    "V": "Visual attention",
    "M": "Readers and memory",
    "X": "Transformer",
    "E": "Metrics and figures",
}
"""By the first letter of the number, in display order."""
HEADING = """\
# Systems

Every system of this project: its files (the main one first), the commands that train or show it,
and our results next to the published ones. Data and sizes often differ from the paper: the note
says how. [results.md](results.md) has the source, the training time in minutes and the full command
of each number. `tools/systems.py` writes this page.
"""
COLUMNS = ("", "system", "files", "command", "metric", "published", "ours", "note")


@dataclass(frozen=True, kw_only=True)
class System:
    """One system."""

    number: str
    name: str
    files: tuple[str, ...]
    """Relative to the package folder, the main file first."""
    recipes: tuple[str, ...] = ()
    """Recipes that train it or use it."""
    commands: tuple[str, ...] = ()
    """Commands that show it."""
    published: str = ""
    """A published number that belongs to no single recipe."""
    note: str = ""

    @property
    def group(self) -> str:
        """The group of the system."""
        return GROUPS[self.number[0]]


class Standing(NamedTuple):
    """A recipe of a system and its result."""

    recipe: str
    metric: str
    published: float | None
    target: float | None
    ours: float | None
    """None if the results contain no run of it yet."""
    note: str
    """Why ours and the published number differ, if a difference is expected."""


def systems(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/systems.md"),
    results: Annotated[Path, typer.Option(help="The folder with results.json.")] = Path("docs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write the page of all systems: files, recipes, published numbers and ours.

    Our numbers come from results.json, which tools/results.py writes.
    """
    if not (results / JSON_FILE).exists():
        typer.echo(f"no {results / JSON_FILE} here: our numbers are left out", err=True)
    found = all_standings(read_results(results))
    with atomic_file(out) as temporary:
        temporary.write_text(systems_page(found), encoding="utf-8")
    typer.echo(f"wrote {out}", err=True)
    if as_json:
        typer.echo(json.dumps([as_dict(*each) for each in found.items()], ensure_ascii=False))


def all_systems() -> list[System]:
    """All systems, in the order of their numbers."""
    rows = json.loads(LIST.read_text(encoding="utf-8"))
    return [System(**{key: _frozen(held) for key, held in row.items()}) for row in rows]


def all_standings(results: Sequence[Result]) -> dict[System, list[Standing]]:
    """All systems with the results of their recipes."""
    recipes = list_recipes()
    return {system: standings(system, recipes, results) for system in all_systems()}


def standings(
    system: System, recipes: Mapping[str, Facts], results: Sequence[Result]
) -> list[Standing]:
    """The results of the recipes of a system, with the published numbers."""
    ours = {row.recipe: row.value for row in results}
    found = [recipes[name] for name in system.recipes if name in recipes]
    return [
        Standing(
            recipe=each.name,
            metric=each.metric,
            published=each.published,
            target=each.target,
            ours=ours.get(each.name),
            note=each.note,
        )
        for each in found
    ]


def as_dict(system: System, found: Sequence[Standing]) -> dict[str, Any]:
    """A system as JSON."""
    return {
        "number": system.number,
        "group": system.group,
        "name": system.name,
        "files": list(system.files),
        "recipes": [each._asdict() for each in found],
        "commands": list(system.commands),
        "published": system.published,
        "note": system.note,
    }


def systems_page(found: Mapping[System, Sequence[Standing]]) -> str:
    """The systems as Markdown, a table for each group."""
    lines = [HEADING]
    for group in GROUPS.values():
        lines += [f"## {group}", "", table_row(COLUMNS), "|" + "---|" * len(COLUMNS)]
        for system, reached in found.items():
            if system.group == group:
                lines += _rows(system, reached)
        lines.append("")
    return "\n".join(lines)


def _rows(system: System, reached: Sequence[Standing]) -> Iterator[str]:
    """A row for each recipe and one for the commands; only the first row describes the system."""
    files = ", ".join(f"[`{Path(file).name}`](../saccade/{file})" for file in system.files)
    about = (system.number, system.name, files)
    published = f"Published: {system.published}." if system.published else ""
    shown = [_cells(each) for each in reached]
    if system.commands or not shown:
        shown.append((", ".join(f"`saccade {each}`" for each in system.commands), *[""] * 4))
    for number, (*cells, note) in enumerate(shown):
        notes = [note] if number else [published, system.note, note]
        first = ("", "", "") if number else about
        yield table_row([*first, *cells, " ".join(filter(None, notes))])


def _cells(standing: Standing) -> tuple[str, ...]:
    published = "" if standing.published is None else f"{standing.published:.4g}"
    ours = "not run yet" if standing.ours is None else f"{standing.ours:.4g}"
    # A comparison with a published number needs its caveats in the same row.
    note = standing.note if published else ""
    return f"`saccade train {standing.recipe}`", standing.metric, published, ours, note


def _frozen(held: Any) -> Any:
    """Lists as tuples without duplicates: a row may name a file several times after a merge."""
    return tuple(dict.fromkeys(held)) if isinstance(held, list) else held


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    return run_script("systems", Command(systems, EXAMPLES), arguments)


if __name__ == "__main__":
    sys.exit(main())
