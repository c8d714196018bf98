"""`saccade eval`: the figures of a run, or of several together, on test data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.plugins import load_plugin
from saccade.cli.train import show_figures

EXAMPLES = """
saccade eval runs/bahdanau-multi30k
saccade eval runs/seed-1 runs/seed-2 runs/seed-3 --out runs/ensemble --json
"""


def run(
    runs: Annotated[
        list[Path], typer.Argument(help="A run folder; several of one recipe are an ensemble.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="The folder with data sets; SACCADE_DATA, or the cache, without."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Keep the figures of an ensemble here, for `saccade results`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with the recipe, if it is your own.")
    ] = None,
) -> None:
    """Evaluate a trained system on the test data of its recipe.

    The figures of one run are kept in its folder, those of several used together where --out says.
    """
    load_plugin(plugin)

    from saccade.errors import UsageError
    from saccade.zoo.recipes.opened import open_run
    from saccade.zoo.recipes.running import evaluate_run, write_ensemble
    from saccade.zoo.training.run_folder import RunFolder

    if out is not None and len(runs) == 1:
        raise UsageError(
            "--out is for the figures of several runs together; those of one stay with it",
            hint=f"saccade eval {runs[0]}",
        )
    run = open_run(runs)
    figures, kept_in = evaluate_run(run, data), out
    if len(runs) == 1:
        folder, kept_in = RunFolder(runs[0]), runs[0]
        figures = {**folder.figures, **figures}
        folder.write_figures(figures)
    elif out is not None:
        write_ensemble(out, runs, figures)
    show_figures(run.recipe, figures, folder=kept_in, as_json=as_json)
