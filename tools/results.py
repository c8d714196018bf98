"""Collect the metrics of runs, with the published numbers, as JSON and as a page.

    python tools/results.py
    python tools/results.py runs/bahdanau-multi30k runs/seq2seq --out docs --json

Writes `docs/results.json` and `docs/results.md`. Rows of recipes without a run here are kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.main import Command
from saccade.cli.options import load_plugin
from saccade.errors import RecipeError, StoreError, UsageError
from saccade.store.atomic import atomic_file
from saccade.store.schema import conform, parse_json
from saccade.zoo.recipes.recipe import list_recipes
from saccade.zoo.recipes.run import Result, result_of
from saccade.zoo.training.run_folder import RunFolder
from script import run_script

EXAMPLES = """
python tools/results.py
python tools/results.py runs/bahdanau-multi30k runs/seq2seq --out docs --json
"""
RUNS = Path("runs")
JSON_FILE, PAGE_FILE = "results.json", "results.md"
HEAD = """\
# Results

Our numbers and the published ones, each with the command that reproduces ours and its training
time in minutes on two CPU cores. `tools/results.py` writes this page from the run folders;
`results.json` has the same rows, with the commit of each.

"""
COLUMNS = ("recipe", "metric", "ours", "published", "minutes", "command", "note")


@dataclass(frozen=True)
class Rows:
    """The content of results.json."""

    rows: tuple[Result, ...]


def results(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders. Default: all finished in runs/.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of results.json and results.md.")] = Path(
        "docs"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file that registers your own recipe.")
    ] = None,
) -> None:
    """Write the metrics of runs to results.json and results.md.

    Rows of recipes without a run here are kept.
    """
    load_plugin(plugin)
    folders = runs or finished_runs()
    if not folders:
        raise UsageError(f"no run in {RUNS}/ is done", hint="`saccade train NAME` makes one")
    rows = gather_results(folders, kept=read_results(out))
    write_results(out, rows)
    typer.echo(f"wrote {out / JSON_FILE} and {out / PAGE_FILE}", err=True)
    typer.echo(json.dumps([asdict(row) for row in rows]) if as_json else results_page(rows))


def finished_runs() -> list[Path]:
    """The runs in runs/ that have metrics; the others are named on stderr."""
    found = sorted(RUNS.iterdir()) if RUNS.is_dir() else []
    found = [path for path in found if (path / "manifest.json").exists()]
    done = [path for path in found if "value" in RunFolder(path).metrics]
    for path in found:
        if path not in done:
            typer.echo(f"left out {path}: it has no metric yet", err=True)
    return done


def gather_results(folders: Iterable[Path], *, kept: Sequence[Result] = ()) -> list[Result]:
    """A row for each recipe, by name; of several runs, the one evaluated last.

    Args:
        kept: Earlier rows; those of recipes without a run here are kept.
    """
    recipes = list_recipes()
    by_age = sorted(folders, key=lambda folder: RunFolder(folder).metrics.get("evaluated", ""))
    rows = {row.recipe: row for row in (*kept, *(result_of(path, recipes) for path in by_age))}
    return [rows[name] for name in sorted(rows)]


def read_results(folder: Path) -> list[Result]:
    """The rows of an existing results.json; empty if there is none."""
    file = folder / JSON_FILE
    if not file.exists():
        return []
    try:
        rows = parse_json(file.read_bytes(), where=file)
        return list(conform(Rows, {"rows": rows}, where=file).rows)
    except (OSError, StoreError) as error:
        raise RecipeError(
            f"{file} cannot be read: {error}", hint="move it away to start a new one"
        ) from error


def write_results(folder: Path, rows: Sequence[Result]) -> None:
    """Write ``results.json`` and ``results.md``."""
    text = json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n"
    for name, content in ((JSON_FILE, text), (PAGE_FILE, results_page(rows))):
        with atomic_file(folder / name) as temporary:
            temporary.write_text(content, encoding="utf-8")


def results_page(rows: Sequence[Result]) -> str:
    """The rows as a Markdown table."""
    lines = [table_row(COLUMNS), "|" + "---|" * len(COLUMNS)]
    for row in rows:
        published = "" if row.published is None else f"{row.published:.4g} ({row.source})"
        cells = (
            f"`{row.recipe}`",
            row.metric,
            f"**{row.value:.4g}**",
            published,
            f"{row.minutes:g}",
            f"`{row.command}`",
            row.note,
        )
        lines.append(table_row(cells))
    return HEAD + "\n".join(lines) + "\n"


def table_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table, with escaped cells."""
    safe = (each.replace("|", "\\|").replace("\n", " ") for each in cells)
    return f"| {' | '.join(safe)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    return run_script("results", Command(results, EXAMPLES), arguments)


if __name__ == "__main__":
    sys.exit(main())
