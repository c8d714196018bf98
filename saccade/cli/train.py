"""`saccade train`: train a recipe, evaluate it, and leave all of it in a run folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.plugins import load_plugin
from saccade.cli.progress import showing_progress
from saccade.cli.recipes import wanted

if TYPE_CHECKING:
    from saccade.zoo.recipes.recipe import Recipe

EXAMPLES = """
saccade train bahdanau-multi30k --set learning_rate=5e-4 --minutes 20
torchrun --nproc-per-node=2 -m saccade train transformer-multi30k --out runs/two --resume
"""


def run(
    name: Annotated[str, typer.Argument(help="A recipe; `saccade recipes` lists them.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="key=value; `saccade recipes NAME` shows the keys. May be given again."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run, or begin it if it is not there.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder with data sets; SACCADE_DATA, or the cache, without."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/NAME without.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Train no longer than this; the recipe's own without.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with a recipe of your own.")
    ] = None,
) -> None:
    """Train a recipe and evaluate it on its test data.

    The run folder holds the settings, the log (log.jsonl, loss.png), the best weights and the
    figures. A run that is stopped or killed goes on with --resume along the same curve. Started by
    torchrun, the processes share each batch.
    """
    load_plugin(plugin)

    from saccade.zoo.recipes.finding import find_recipe
    from saccade.zoo.recipes.running import settings_of_run, train_recipe
    from saccade.zoo.recipes.settings import with_settings

    recipe = find_recipe(name)
    folder = out or Path("runs") / name
    before = settings_of_run(recipe, folder) if resume else recipe.settings
    limit = [] if minutes is None else [f"training.minutes={minutes}"]
    settings = with_settings(before, [*(changes or []), *limit])
    is_first = int(os.environ.get("RANK", "0")) == 0
    try:
        with showing_progress(is_quiet=not is_first) as progress:
            figures = train_recipe(
                recipe, folder, settings=settings, data=data, resume=resume, progress=progress
            )
    except KeyboardInterrupt:
        if is_first:
            typer.echo(f"saved in {folder}; the same command with --resume goes on", err=True)
        raise
    if is_first:
        show_figures(recipe, figures, folder=folder, as_json=as_json)


def show_figures(
    recipe: Recipe, figures: dict[str, Any], *, folder: Path | None, as_json: bool
) -> None:
    """Print what a run has reached beside what was wanted and what was published."""
    if as_json:
        typer.echo(json.dumps({**figures, "folder": None if folder is None else str(folder)}))
        return
    beside = [f"wanted {wanted(recipe)}"] if recipe.at_least is not None else []
    if recipe.published is not None:
        beside.append(f"published {recipe.published:g}, {recipe.source}")
    value = f"{figures['metric']} {figures['value']:.4g}"
    typer.echo(f"{figures['recipe']}: {value}" + (f" ({'; '.join(beside)})" if beside else ""))
    others = {name: number for name, number in figures["test"].items() if name != recipe.metric}
    if others:
        typer.echo(", ".join(f"{name} {number:.4g}" for name, number in others.items()))
    if "ended" in figures:
        typer.echo(
            f"{figures['steps']} steps in {figures['minutes']:g} minutes, ended by "
            f"{figures['ended']}; best at step {figures['best_step']}"
        )
    if folder is not None:
        typer.echo(f"in {folder}")
