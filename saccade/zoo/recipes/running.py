"""Run a recipe: train, evaluate on test data, leave the figure beside the published one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from saccade.distributed import Processes
from saccade.errors import RecipeError
from saccade.processor import prepare_for_long_work, within_memory
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.settings import check_settings, list_settings, read_settings
from saccade.zoo.training.checkpoint import own_randomness, seed_all
from saccade.zoo.training.loop import train
from saccade.zoo.training.run import Progress, refused_to_replace
from saccade.zoo.training.run_folder import RunFolder, commit, versions


def train_recipe(
    recipe: Recipe,
    folder: str | Path,
    *,
    settings: Any = None,
    data: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train a recipe into a run folder, evaluate it, and return the figures it leaves there.

    Args:
        settings: the recipe's own, changed; without it, as they are.
        data: the folder with data sets.
        resume: go on with the run that is in the folder.
    """
    settings = recipe.settings if settings is None else settings
    check_settings(settings)
    if RunFolder(Path(folder)).exists() and not resume:  # before minutes are spent on reading data
        raise refused_to_replace(RunFolder(Path(folder)))
    prepare_for_long_work()
    process = Processes.started()
    seed_all(settings.training.seed)
    about = {
        "recipe": recipe.name,
        "settings": asdict(settings),
        "command": command_for(recipe, settings, n_processes=process.world),
    }
    with within_memory(copies=4):
        job = recipe.build(settings, data)
        trained = train(job, folder, about=about, resume=resume, progress=progress)
    if not process.is_first:
        return trained.figures
    run = OpenRun(recipe=recipe, settings=settings, kept=job.kept, models=(trained.model,))
    figures = {**trained.figures, **evaluate_run(run, data)}
    RunFolder(Path(folder)).write_figures(figures)
    return figures


def evaluate_run(run: OpenRun, data: Path | None = None) -> dict[str, Any]:
    """A recipe's figure on test data, and all others with it."""
    with torch.no_grad(), own_randomness(run.settings.training.seed):
        found = {name: float(value) for name, value in run.recipe.evaluate(run, data).items()}
    if run.recipe.metric not in found:
        raise RecipeError(
            f"{run.recipe.name} gives no {run.recipe.metric!r}, it gives {', '.join(found)}",
            hint="name one of these as the recipe's metric",
        )
    if not math.isfinite(found[run.recipe.metric]):
        raise RecipeError(
            f"the {run.recipe.metric} of {run.recipe.name} is {found[run.recipe.metric]}",
            hint="this is no result: look at the weights and at the test data",
        )
    return {
        "recipe": run.recipe.name,
        "metric": run.recipe.metric,
        "value": found[run.recipe.metric],
        "test": found,
        "evaluated": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_ensemble(folder: Path, runs: Sequence[Path], figures: Mapping[str, Any]) -> None:
    """Leave the figures of several runs used together as a run folder of their own."""
    place, parts = RunFolder(folder), [RunFolder(path) for path in runs]
    if place.exists():
        raise refused_to_replace(place)
    manifests = [part.manifest for part in parts]
    if not all("recipe" in each for each in manifests):
        raise RecipeError("a run was not made by a recipe", hint="open it with its own code")
    name = manifests[0]["recipe"]
    folders = [f"runs/{name}-{number}" for number in range(1, len(parts) + 1)]
    commands = [
        f"{each['command']} --out {out}" for each, out in zip(manifests, folders, strict=True)
    ]
    manifest = {
        "recipe": name,
        "settings": manifests[0]["settings"],
        "runs": [path.name for path in runs],
        "command": " && ".join([*commands, f"saccade eval {' '.join(folders)}"]),
        "versions": versions(),
        "commit": commit(),
    }
    place.begin(manifest, {})
    minutes = sum(part.figures.get("minutes", 0.0) for part in parts)
    place.write_figures({**figures, "minutes": minutes})


def settings_of_run(recipe: Recipe, folder: Path) -> Any:
    """The settings that a run was begun with; the recipe's own if it was not begun."""
    run = RunFolder(folder)
    if not run.exists():
        return recipe.settings
    manifest = run.manifest
    if (found := manifest.get("recipe")) != recipe.name:
        raise RecipeError(
            f"{folder} is a run of {found}, not of {recipe.name}",
            hint="--out names another folder",
        )
    return read_settings(recipe.settings, manifest["settings"])


def command_for(recipe: Recipe, settings: Any, *, n_processes: int = 1) -> str:
    """The command that makes the same figure: what differs from the recipe, and no folders."""
    own = {setting.key: setting.value for setting in list_settings(recipe.settings)}
    changed = [
        f"--set {shlex.quote(f'{setting.key}={_word(setting.value)}')}"
        for setting in list_settings(settings)
        if setting.value != own[setting.key]
    ]
    start = "saccade" if n_processes == 1 else f"torchrun --nproc-per-node={n_processes} -m saccade"
    return " ".join([start, "train", recipe.name, *changed])


def _word(value: Any) -> str:
    """A value as `--set` takes it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
