"""`saccade recipes`, `train` and `eval`: from a recipe to a run and its metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli import options

if TYPE_CHECKING:
    from saccade.zoo.recipes.recipe import Facts, Recipe


RECIPES_EXAMPLES = """
saccade recipes
saccade recipes bahdanau-multi30k --json
"""
FACTS = ("name", "about", "system", "task", "metric", "is_better", "target", "published")
MORE_FACTS = ("other_metrics", "source", "note", "minutes")


def show_recipes(
    name: Annotated[
        str | None, typer.Argument(help="Show one recipe with all its settings.")
    ] = None,
    as_json: options.Json = False,
    plugin: options.RecipePlugin = None,
) -> None:
    """List the recipes: a system, a task, a budget, and the published number."""
    options.load_plugin(plugin)

    from saccade.zoo.recipes.recipe import find_recipe, list_recipes

    if name is not None:
        recipe = find_recipe(name)
        typer.echo(json.dumps(_all_of(recipe)) if as_json else _page(recipe))
        return
    recipes = list(list_recipes().values())
    if as_json:
        typer.echo(json.dumps([_facts(recipe) for recipe in recipes]))
    else:
        _show(recipes)


def target_of(recipe: Facts) -> str:
    """The target value of a recipe, in words."""
    if recipe.target is None:
        return ""
    return f"{recipe.bound} {recipe.target:g}"


def _other_metric(recipe: Recipe, name: str) -> str:
    """Another metric of the recipe, and its target value."""
    target = recipe.other_metrics[name]
    return name if target is None else f"{name} ({recipe.bound} {target:g})"


def _facts(recipe: Facts) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in (*FACTS, *MORE_FACTS)}


def _all_of(recipe: Recipe) -> dict[str, Any]:
    settings = [{"key": k, "value": v, "help": h} for k, v, h in _settings(recipe.settings)]
    return {**_facts(recipe), "settings": settings}


def _settings(settings: Any, prefix: str = "") -> list[tuple[str, Any, str]]:
    """Each setting with its value and its help text."""
    rows, helps = [], options.field_help(type(settings))
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
        "target": target_of(recipe),
        "other metrics": ", ".join(map(partial(_other_metric, recipe), recipe.other_metrics)),
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


def _show(recipes: Sequence[Facts]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Descriptions are below the table, so that its columns fit any width.
    table = Table(box=box.SIMPLE)
    for name in ("recipe", "metric", "target", "published", "minutes"):
        table.add_column(name, no_wrap=True, justify="right" if name == "minutes" else "left")
    console = Console(highlight=False)
    for recipe in recipes:
        published = "" if recipe.published is None else f"{recipe.published:g}"
        cells = (recipe.name, recipe.metric, target_of(recipe), published)
        table.add_row(*cells, f"{recipe.minutes:g}")
    console.print(table)
    for recipe in recipes:
        console.print(f"  [bold]{recipe.name}[/bold]  {recipe.about}", soft_wrap=True)


TRAIN_EXAMPLES = """
saccade train bahdanau-multi30k --set learning_rate=5e-4 --minutes 20
torchrun --nproc-per-node=2 -m saccade train transformer-multi30k --out runs/two --resume
"""


def train(
    name: Annotated[str, typer.Argument(help="A recipe; `saccade recipes` lists them.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="key=value; `saccade recipes NAME` shows the keys. Can be repeated."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run, or start it if there is none.")
    ] = False,
    data: options.DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; default: runs/NAME.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time limit; default: the recipe's own.")
    ] = None,
    as_json: options.Json = False,
    plugin: options.RecipePlugin = None,
) -> None:
    """Train a recipe and evaluate it on its test data.

    The run folder holds the settings, the log (log.jsonl, loss.png), the best weights and the
    metrics. A stopped or killed run resumes with --resume on the same curve. Started by torchrun,
    the processes share each batch.
    """
    options.load_plugin(plugin)

    from saccade.zoo.recipes.recipe import find_recipe
    from saccade.zoo.recipes.run import settings_of_run, train_recipe
    from saccade.zoo.training.settings import with_settings

    recipe = find_recipe(name)
    folder = out or Path("runs") / name
    before = settings_of_run(recipe, folder) if resume else recipe.settings
    limit = [] if minutes is None else [f"training.minutes={minutes}"]
    settings = with_settings(before, [*(changes or []), *limit])
    is_first = int(os.environ.get("RANK", "0")) == 0
    try:
        with options.showing_progress(is_quiet=not is_first) as progress:
            metrics = train_recipe(
                recipe, folder, settings=settings, data=data, resume=resume, progress=progress
            )
    except KeyboardInterrupt:
        if is_first:
            typer.echo(f"saved in {folder}; the same command with --resume continues", err=True)
        raise
    if is_first:
        show_metrics(recipe, metrics, folder=folder, as_json=as_json)


def show_metrics(
    recipe: Recipe, metrics: dict[str, Any], *, folder: Path | None, as_json: bool
) -> None:
    """Print the metrics of a run, the target and the published number."""
    if as_json:
        typer.echo(json.dumps({**metrics, "folder": None if folder is None else str(folder)}))
        return
    expected = [f"target {target_of(recipe)}"] if recipe.target is not None else []
    if recipe.published is not None:
        expected.append(f"published {recipe.published:g}, {recipe.source}")
    value = f"{metrics['metric']} {metrics['value']:.4g}"
    typer.echo(f"{metrics['recipe']}: {value}" + (f" ({'; '.join(expected)})" if expected else ""))
    others = {name: number for name, number in metrics["test"].items() if name != recipe.metric}
    if others:
        typer.echo(", ".join(f"{name} {number:.4g}" for name, number in others.items()))
    if "ended" in metrics:
        typer.echo(
            f"{metrics['steps']} steps in {metrics['minutes']:g} minutes, ended by "
            f"{metrics['ended']}; best at step {metrics['best_step']}"
        )
    if folder is not None:
        typer.echo(f"in {folder}")


EVAL_EXAMPLES = """
saccade eval runs/bahdanau-multi30k
saccade eval runs/seed-1 runs/seed-2 runs/seed-3 --out runs/ensemble --json
"""


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(help="A run folder; several of one recipe form an ensemble.")
    ],
    data: options.DataFolder = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Store the metrics of an ensemble in this folder, as a run of its own."),
    ] = None,
    as_json: options.Json = False,
    plugin: options.RecipePlugin = None,
) -> None:
    """Evaluate a trained system on the test data of its recipe.

    The metrics of one run are stored in its folder, those of an ensemble in --out.
    """
    options.load_plugin(plugin)

    from saccade.errors import UsageError
    from saccade.zoo.recipes.run import evaluate_run, load_run, write_ensemble
    from saccade.zoo.training.run_folder import RunFolder

    if out is not None and len(runs) == 1:
        raise UsageError(
            "--out is for the metrics of several runs together; those of one stay with it",
            hint=f"saccade eval {runs[0]}",
        )
    run = load_run(runs)
    metrics, kept_in = evaluate_run(run, data), out
    if len(runs) == 1:
        folder, kept_in = RunFolder(runs[0]), runs[0]
        metrics = {**folder.metrics, **metrics}
        folder.write_metrics(metrics)
    elif out is not None:
        write_ensemble(out, runs, metrics)
    show_metrics(run.recipe, metrics, folder=kept_in, as_json=as_json)
