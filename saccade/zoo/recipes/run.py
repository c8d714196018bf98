"""Train a recipe, load its run, evaluate it, report its result: a run is a trained recipe."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from os.path import isfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saccade.distributed import Processes
from saccade.errors import RecipeError, UsageError
from saccade.trace.trace import ImageTrace, Trace
from saccade.zoo.recipes.recipe import (
    Facts,
    InputFile,
    Recipe,
    SampleOptions,
    Translated,
    TranslateOptions,
    find_recipe,
)
from saccade.zoo.training.checkpoint import load_weights, own_randomness, seed_all
from saccade.zoo.training.loop import train
from saccade.zoo.training.optim import prepare_for_long_work, within_memory
from saccade.zoo.training.run_folder import RunFolder, commit, versions
from saccade.zoo.training.run_state import Progress, refused_to_replace
from saccade.zoo.training.settings import check_settings, differences, list_settings, read_settings

MOST_CHARACTERS = 5000  # of a sentence, a story or a program
# Errors that a recipe may raise when `kept` does not fit.
UNFIT = (LookupError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError)


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A trained system and all that is needed to use it; with several models, an ensemble."""

    recipe: Recipe
    settings: Any
    kept: Mapping[str, Any]
    """The job's ``kept``."""
    models: tuple[nn.Module, ...]
    """In eval mode, with their best weights."""

    @property
    def model(self) -> nn.Module:
        """The one model of a run that is no ensemble."""
        if len(self.models) != 1:
            raise RecipeError(
                f"{self.recipe.name} cannot do this with {len(self.models)} runs together",
                hint="give one run",
            )
        (model,) = self.models
        return model

    def trace(self, given: str | Path, *, data: Path | None = None) -> Sequence[Trace | ImageTrace]:
        """Where attention goes for a text, a numbered item of the test data, or a file.

        Args:
            given: a file is a `Path` or an `InputFile`; a plain text never names one.
            data: the folder with data sets.
        """
        if not self.recipe.can_trace:
            raise self.recipe.cannot("has no attention to trace")
        (text,) = self._inputs([given])
        return self.recipe.trace(self, text, data=data)

    def translate(
        self,
        texts: Sequence[str | Path],
        options: TranslateOptions | None = None,
        *,
        data: Path | None = None,
    ) -> Sequence[Translated]:
        """Translations of sentences, or the text of a recording or of handwriting."""
        given = self._inputs(texts)
        return self.recipe.translate(self, given, options or TranslateOptions(), data=data)

    def sample(self, options: SampleOptions | None = None) -> str:
        """Text sampled from the system; the same seed gives the same text."""
        return self.recipe.sample(self, options or SampleOptions())

    def named_files(self, texts: Sequence[str]) -> list[str]:
        """Texts of a command line: those that are paths of files become the files.

        Only where the system reads files.
        """
        if not self.recipe.reads_files:
            return list(texts)
        return [InputFile.read(each) if isfile(each) else each for each in texts]

    def _inputs(self, given: Sequence[str | Path]) -> list[str]:
        _refuse_long([each for each in given if isinstance(each, str)])
        read = [InputFile.read(each) if isinstance(each, Path) else each for each in given]
        for each in read:
            if isinstance(each, InputFile) and not self.recipe.reads_files:
                raise UsageError(
                    f"{self.recipe.name} reads no files, got {each}", hint="give a text"
                )
        return read

    def unknown_words(self, text: str, *, data: Path | None = None) -> list[str]:
        """The words of a text that the system reads as ``<unk>``, each once."""
        return list(dict.fromkeys(self.recipe.unknown_words(self, text, data=data)))


def _refuse_long(texts: Sequence[str]) -> None:
    """Attention costs the square of the length: a book given as a sentence would run for hours."""
    if (longest := max(map(len, texts), default=0)) > MOST_CHARACTERS:
        raise UsageError(
            f"expected at most {MOST_CHARACTERS:,} characters at once, got {longest:,}",
            hint="give it sentence by sentence",
        )


def load_run(folder: str | Path | Sequence[str | Path]) -> TrainedRun:
    """Open a run by its folder, or several runs of one recipe to be used together.

    It does not need the training data.
    """
    paths = [folder] if isinstance(folder, str | Path) else list(folder)
    opened = [_load(Path(path)) for path in paths]
    for path, other in zip(paths[1:], opened[1:], strict=True):
        _check_together(paths[0], opened[0], path, other)
    models = tuple(model for run in opened for model in run.models)
    first = opened[0]
    return TrainedRun(recipe=first.recipe, settings=first.settings, kept=first.kept, models=models)


def _load(path: Path) -> TrainedRun:
    folder = RunFolder(path)
    manifest = folder.manifest
    if not manifest.get("recipe"):
        raise RecipeError(
            f"{path} was not made by a recipe", hint="open it with the code that made it"
        )
    recipe = find_recipe(manifest["recipe"])
    settings = read_settings(recipe.settings, manifest["settings"])
    weights, kept = folder.read_best()[0], folder.kept
    try:
        with within_memory(copies=1):
            model = recipe.restore(settings, kept)
    except UNFIT as error:
        raise RecipeError(
            f"{path} cannot be opened: what it kept does not fit its recipe "
            f"({type(error).__name__}: {str(error)[:80]})",
            hint="copy the run again, or train it again",
        ) from error
    load_weights(model, weights, source=folder.best)
    model.eval().requires_grad_(False)
    return TrainedRun(recipe=recipe, settings=settings, kept=kept, models=(model,))


def _check_together(
    path: str | Path, run: TrainedRun, other_path: str | Path, other: TrainedRun
) -> None:
    wrong = ""
    if run.recipe.name != other.recipe.name:
        wrong = f"one is of {run.recipe.name}, the other of {other.recipe.name}"
    elif changed := differences(run.kept, other.kept, free=frozenset()):
        wrong = f"what they kept differs ({changed[:80]})"
    elif changed := differences(
        _without_training(run.settings),
        _without_training(other.settings),
        free=run.recipe.may_differ,
    ):
        wrong = changed
    if wrong:
        raise RecipeError(
            f"{path} and {other_path} cannot be used together: {wrong}",
            hint="an ensemble is of runs that differ in their training alone, such as its seed",
        )


def _without_training(settings: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if name != "training"}


def train_recipe(
    recipe: Recipe,
    folder: str | Path,
    *,
    settings: Any = None,
    data: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train a recipe into a run folder, evaluate it, and return the metrics that are stored there.

    Args:
        settings: default: the recipe's own.
        data: the folder with data sets.
        resume: resume the run in the folder.
    """
    settings = recipe.settings if settings is None else settings
    check_settings(settings)
    if (
        RunFolder(Path(folder)).exists() and not resume
    ):  # before reading data, which may take minutes
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
        return trained.metrics
    run = TrainedRun(recipe=recipe, settings=settings, kept=job.kept, models=(trained.model,))
    metrics = {**trained.metrics, **evaluate_run(run, data)}
    RunFolder(Path(folder)).write_metrics(metrics)
    return metrics


def evaluate_run(run: TrainedRun, data: Path | None = None) -> dict[str, Any]:
    """The recipe's metrics on test data."""
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
            hint="this is not a valid result: check the weights and the test data",
        )
    return {
        "recipe": run.recipe.name,
        "metric": run.recipe.metric,
        "value": found[run.recipe.metric],
        "test": found,
        "evaluated": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_ensemble(folder: Path, runs: Sequence[Path], metrics: Mapping[str, Any]) -> None:
    """Store the metrics of an ensemble of runs as a run folder of its own."""
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
    minutes = sum(part.metrics.get("minutes", 0.0) for part in parts)
    place.write_metrics({**metrics, "minutes": minutes})


def settings_of_run(recipe: Recipe, folder: Path) -> Any:
    """The settings of a run; the recipe's own if there is no run yet."""
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
    """The command that reproduces the metric: settings that differ from the recipe, no folders."""
    own = {setting.key: setting.value for setting in list_settings(recipe.settings)}
    changed = [
        f"--set {shlex.quote(f'{setting.key}={_word(setting.value)}')}"
        for setting in list_settings(settings)
        if setting.value != own[setting.key]
    ]
    start = "saccade" if n_processes == 1 else f"torchrun --nproc-per-node={n_processes} -m saccade"
    return " ".join([start, "train", recipe.name, *changed])


def _word(value: Any) -> str:
    """A value in the format of `--set`."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# The result of a run and the published number: a row of docs/results.md and of the viewer's list.


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one run."""

    recipe: str
    metric: str
    value: float
    published: float | None
    source: str
    minutes: float
    command: str
    commit: str
    note: str


def result_of(folder: Path, recipes: Mapping[str, Facts]) -> Result:
    """The result of a finished run."""
    run = RunFolder(folder)
    manifest, metrics = run.manifest, run.metrics
    if "value" not in metrics:
        raise RecipeError(
            f"{folder} has no metric yet",
            hint="`saccade train ... --resume` continues it, `saccade eval RUN` evaluates it",
        )
    name = manifest.get("recipe", "no recipe")
    if name not in recipes:
        raise RecipeError(
            f"{folder} is a run of {name}, which is not known here",
            hint="a recipe of your own needs --plugin FILE",
        )
    recipe = recipes[name]
    if together := len(manifest.get("runs", ())):
        # The published number and the target are of one system, not of an ensemble.
        recipe = replace(recipe, name=f"{name} x {together}", published=None, source="")
        note = f"An ensemble of {together} runs."
        recipe = replace(recipe, target=None, other_metrics={}, note=note)
    return Result(
        recipe=recipe.name,
        metric=metrics.get("metric", recipe.metric),
        value=round(metrics["value"], 4),
        published=recipe.published,
        source=recipe.source,
        minutes=round(metrics.get("minutes", 0.0), 1),
        command=manifest["command"],
        commit=manifest["commit"],
        note=_note(recipe, metrics),
    )


def _note(recipe: Facts, metrics: Mapping[str, Any]) -> str:
    parts = []
    if recipe.target is not None:
        target = _target(recipe, metrics["value"], recipe.target)
        parts.append(f"{target[0].upper()}{target[1:]}.")
    found = metrics.get("test", {})
    others = [
        _other_metric(recipe, name, found[name])
        for name in recipe.other_metrics
        if found.get(name) is not None
    ]
    if others:
        parts.append(f"{', '.join(others)}.")
    return " ".join([*parts, recipe.note]).strip()


def _other_metric(recipe: Facts, name: str, value: float) -> str:
    """A metric other than the main one."""
    result, target = f"`{name}`: {value:.4g}", recipe.other_metrics[name]
    return result if target is None else f"{result} ({_target(recipe, value, target)})"


def _target(recipe: Facts, value: float, target: float) -> str:
    bound = f"target: {recipe.bound} {target:.4g}"
    return bound if recipe.reaches(value, target) else f"{bound}; **not reached**"
