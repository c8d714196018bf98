"""`saccade results`: what runs have reached beside what was published, written to the docs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import load_plugin
from saccade.errors import UsageError

RESULTS_EXAMPLES = """
saccade results
saccade results runs/bahdanau-multi30k runs/seq2seq --out docs --json
"""
RUNS = Path("runs")


def results(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders; all that are done in runs/ without.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where results.json and results.md are.")] = Path(
        "docs"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with the recipe, if it is your own.")
    ] = None,
) -> None:
    """Put the figures of runs into results.json and results.md.

    Rows of recipes that have no run here stay as they are.
    """
    load_plugin(plugin)

    from saccade.zoo.recipes.results import (
        gather_results,
        read_results,
        results_page,
        write_results,
    )

    folders = runs or finished_runs()
    if not folders:
        raise UsageError(f"no run in {RUNS}/ is done", hint="`saccade train NAME` makes one")
    rows = gather_results(folders, kept=read_results(out))
    write_results(out, rows)
    typer.echo(f"wrote {out / 'results.json'} and {out / 'results.md'}", err=True)
    typer.echo(json.dumps([asdict(row) for row in rows]) if as_json else results_page(rows))


def finished_runs() -> list[Path]:
    """The runs in runs/ that have a figure; those that have none are named on stderr."""
    from saccade.zoo.training.run_folder import RunFolder

    found = sorted(RUNS.iterdir()) if RUNS.is_dir() else []
    found = [path for path in found if (path / "manifest.json").exists()]
    done = [path for path in found if "value" in RunFolder(path).figures]
    for path in found:
        if path not in done:
            typer.echo(f"left out {path}: it has no figure yet", err=True)
    return done
