"""The page of all systems: where each is, how it is trained, the published number and ours.

    python tools/systems.py
    python tools/systems.py --out /tmp/systems.md --json

Writes `docs/systems.md` from `systems.json` beside this file and from `docs/results.json`, which
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
    "Z": "Reading the heads of a language model",
    "R": "Recurrent cells",
    "T": "Training and diagnosing sequences",
    "L": "Language models",
    "S": "Sequence to sequence",
    "A": "Attention",
    "V": "Visual attention",
    "M": "Readers and memory",
    "X": "Transformer",
    "E": "Metrics and pictures",
}
"""By the letter with which a number begins, in the order in which they are shown."""
HEADING = """\
# Systems

Every system of this project: its files (the first is the one to open), the commands that train or
show it, and what its recipes reach beside what was published. Data and sizes are often not those of
the paper: the note says what differs. [results.md](results.md) has the source, the minutes and the
whole command of each number. `tools/systems.py` writes this page.
"""
COLUMNS = ("", "system", "files", "command", "metric", "published", "ours", "note")


@dataclass(frozen=True, kw_only=True)
class System:
    """One system."""

    number: str
    name: str
    files: tuple[str, ...]
    """Where it is, from the package's folder; the first is the one to open."""
    recipes: tuple[str, ...] = ()
    """Those that train it, or that it has a part in."""
    commands: tuple[str, ...] = ()
    """Those that show it."""
    published: str = ""
    """A printed number that belongs to no single recipe."""
    note: str = ""

    @property
    def group(self) -> str:
        """What kind of system it is."""
        return GROUPS[self.number[0]]


class Standing(NamedTuple):
    """A recipe of a system, and how far it came."""

    recipe: str
    metric: str
    published: float | None
    wanted: float | None
    ours: float | None
    """None where no run has been put into the results yet."""
    note: str
    """Why ours and the published number differ, if they should."""


def systems(
    out: Annotated[Path, typer.Option(help="The page.")] = Path("docs/systems.md"),
    results: Annotated[Path, typer.Option(help="The folder with results.json.")] = Path("docs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write the page of every system: its files, its recipes, the published number and ours.

    Ours are those of results.json, which tools/results.py writes.
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
    """Every system, by its number."""
    rows = json.loads(LIST.read_text(encoding="utf-8"))
    return [System(**{key: _frozen(held) for key, held in row.items()}) for row in rows]


def all_standings(results: Sequence[Result]) -> dict[System, list[Standing]]:
    """Every system with what its recipes reached, by its number."""
    recipes = list_recipes()
    return {system: standings(system, recipes, results) for system in all_systems()}


def standings(
    system: System, recipes: Mapping[str, Facts], results: Sequence[Result]
) -> list[Standing]:
    """What the recipes of a system reached, beside what was published."""
    ours = {row.recipe: row.value for row in results}
    found = [recipes[name] for name in system.recipes if name in recipes]
    return [
        Standing(
            recipe=each.name,
            metric=each.metric,
            published=each.published,
            wanted=each.at_least,
            ours=ours.get(each.name),
            note=each.note,
        )
        for each in found
    ]


def as_dict(system: System, found: Sequence[Standing]) -> dict[str, Any]:
    """A system as JSON can hold it."""
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
    """A row for each recipe, and one for the commands; what is said of it stands in the first."""
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
    # A comparison stands beside what it leaves out.
    note = standing.note if published else ""
    return f"`saccade train {standing.recipe}`", standing.metric, published, ours, note


def _frozen(held: Any) -> Any:
    """A list once each: where files were put together, a row may name one several times."""
    return tuple(dict.fromkeys(held)) if isinstance(held, list) else held


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; its exit code."""
    return run_script("systems", Command(systems, EXAMPLES), arguments)


if __name__ == "__main__":
    sys.exit(main())
