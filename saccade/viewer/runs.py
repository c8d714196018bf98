"""Runs and saved traces in the folders of a session; requests give names, never paths."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, final

from cachetools import LRUCache
from pydantic import WithJsonSchema

from saccade.errors import SaccadeError, UsageError
from saccade.viewer.schemas import TraceQuestion
from saccade.viewer.worker import Progress

if TYPE_CHECKING:
    from saccade.zoo.recipes.recipe import Entry
    from saccade.zoo.recipes.run import TrainedRun

LOG, MANIFEST = "log.jsonl", "manifest.json"
SILENT = 15 * 60  # seconds; a training writes to its log more often
POINTS = 400  # of a curve: a screen shows no more
OPEN_RUNS = 2  # trained systems kept in memory
EXAMPLES = {"multi30k": "Ein Hund läuft durch den Schnee."}  # by a part of the task's name

TraceJson: TypeAlias = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "title": "Trace",
            "description": "A trace; README.md lists the further keys of each kind.",
            "properties": {
                "kind": {"type": "string"},
                "title": {"type": "string"},
                "steps": {"type": "array", "items": {"type": "string"}},
                "meta": {"type": "object"},
            },
            "required": ["kind", "title", "steps", "meta"],
        }
    ),
]
"""A trace or an image trace with its tensors as lists; their dataclasses have tensors."""


@dataclass(frozen=True, kw_only=True)
class DamagedRun:
    """A run that cannot be read."""

    name: str
    state: Literal["damaged"]
    note: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: its metric and the published value."""

    name: str
    recipe: str
    about: str
    system: str
    state: Literal["done", "running", "stopped"]
    """Done as soon as it has its metric; stopped if its log has not grown for `SILENT` seconds."""
    metric: str
    is_better: str
    value: float | None
    published: float | None
    source: str
    minutes: float | None
    command: str
    can_trace: bool
    example: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Loss and validation metrics of a log, at most `POINTS` points."""

    step: list[int]
    loss: list[float | None]
    validation: dict[str, list[int | float | None]]
    """The steps, and each metric at these steps; the one that selects the checkpoint is first."""


@dataclass(frozen=True, kw_only=True)
class RunDetails(Run):
    """A run with its settings and its curves."""

    settings: dict[str, Any]
    versions: dict[str, Any]
    n_weights: int | None
    began: str
    score: str
    curve: Curve
    metrics: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DamagedDetails(DamagedRun):
    """The same keys for a run that cannot be read, all empty."""

    settings: dict[str, Any]
    versions: dict[str, Any]
    curve: Curve
    metrics: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SavedTrace:
    """Summary of a trace on disk."""

    name: str
    kind: str
    title: str
    n_steps: int


class NotFoundError(UsageError):
    """No such run or trace in the folders of the session."""


@final
class Gallery:
    """Runs and traces in some folders. Requests give names, never paths."""

    def __init__(self, folders: Sequence[Path], *, data: Path | None = None) -> None:
        self._data = data
        self._folders = [folder.resolve() for folder in folders]
        self._open: LRUCache[str, TrainedRun] = LRUCache(OPEN_RUNS)

    @cached_property
    def _recipes(self) -> Mapping[str, Entry]:
        from saccade.zoo.recipes.recipe import list_recipes

        return list_recipes()

    def runs(self) -> tuple[Run | DamagedRun, ...]:
        """All runs in the folders."""
        found = self._found(is_run=True)
        return tuple(self._summary(name, path) for name, path in found.items())

    def run(self, name: str) -> RunDetails | DamagedDetails:
        """One run with its curves."""
        from saccade.zoo.training.run_folder import RunFolder, read_log

        path = self._path(name, is_run=True)
        folder, summary = RunFolder(path), self._summary(name, path)
        if isinstance(summary, DamagedRun):
            return DamagedDetails(
                **vars(summary), settings={}, versions={}, curve=_curve([], ""), metrics={}
            )
        manifest = folder.manifest
        score = manifest.get("score") or ""
        return RunDetails(
            **vars(summary),
            settings=manifest.get("settings", {}),
            versions=manifest.get("versions", {}),
            n_weights=manifest.get("n_weights"),
            began=manifest.get("began", ""),
            score=score,
            curve=_curve(read_log(folder.log), score),
            metrics=folder.metrics,
        )

    def trace(self, question: TraceQuestion, _: Progress) -> list[TraceJson]:
        """Traces of a trained system on an input: as `saccade trace RUN INPUT --json`."""
        from saccade.zoo.recipes.recipe import InputFile
        from saccade.zoo.recipes.run import load_run

        path, text = self._path(question.run, is_run=True), question.input
        if not text.strip():
            raise UsageError(f"the input is empty: {text!r}", hint="give at least one word")
        opened = self._open.get(question.run)
        if opened is None:
            opened = self._open[question.run] = load_run(path)
        given = text if question.file is None else InputFile(text, question.file)
        return [trace.to_dict() for trace in opened.trace(given, data=self._data)]

    def traces(self) -> tuple[SavedTrace, ...]:
        """All saved traces in the folders."""
        from saccade.store.folder import read_manifest

        found = []
        for name, path in self._found(is_run=False).items():
            try:
                manifest = read_manifest(path)
            except SaccadeError:
                continue
            if "trace" in str(manifest.get("holds", "")):
                kind, title = (str(manifest.get(key, "")) for key in ("kind", "title"))
                steps = manifest.get("steps")
                n_steps = len(steps) if isinstance(steps, list) else 0
                found.append(SavedTrace(name=name, kind=kind, title=title, n_steps=n_steps))
        return tuple(found)

    def saved_trace(self, name: str) -> TraceJson:
        """One saved trace."""
        from saccade.trace.trace import load_trace

        return load_trace(self._path(name, is_run=False)).to_dict()

    def _path(self, name: str, *, is_run: bool) -> Path:
        found = self._found(is_run=is_run)
        if name not in found:
            what = "run" if is_run else "trace"
            raise NotFoundError(
                f"no {what} {name!r} in the folders of this viewer",
                hint="`saccade view FOLDER` shows the runs and traces of a folder",
            )
        return found[name]

    def _found(self, *, is_run: bool) -> dict[str, Path]:
        """Paths by name; searched at each request, since runs may appear while the page is open."""
        found: dict[str, Path] = {}
        for path in self._candidates():
            # A run has a log and a manifest; a trace has a manifest only.
            if (path / MANIFEST).is_file() and (path / LOG).is_file() == is_run:
                number, name = 2, path.name
                while name in found:
                    name, number = f"{path.name}-{number}", number + 1
                found[name] = path
        return found

    def _candidates(self) -> Iterator[Path]:
        for folder in self._folders:
            if (folder / MANIFEST).is_file():
                yield folder
                continue
            inside = sorted(folder.iterdir()) if folder.is_dir() else []
            for path in inside:
                # A symbolic link may point outside of the folder.
                if path.is_dir() and path.resolve().is_relative_to(folder):
                    yield path

    def _summary(self, name: str, path: Path) -> Run | DamagedRun:
        from saccade.zoo.recipes.run import result_of
        from saccade.zoo.training.run_folder import RunFolder

        try:
            folder = RunFolder(path)
            manifest, metrics = folder.manifest, folder.metrics
            recipe = self._recipes.get(manifest.get("recipe", ""))
            row = result_of(path, self._recipes) if "value" in metrics and recipe else None
        except (SaccadeError, KeyError, TypeError, ValueError) as error:
            return DamagedRun(name=name, state="damaged", note=f"cannot be read: {error}")
        task, own = ("", ()) if recipe is None else (recipe.task, recipe.gallery)
        examples = [*own, *(text for key, text in EXAMPLES.items() if key in task)]
        known = row or recipe  # an ensemble's row lacks some fields of its recipe
        return Run(
            name=name,
            recipe=manifest.get("recipe", ""),
            about="" if recipe is None else recipe.about,
            system=manifest.get("system", ""),
            state="done" if row is not None else "running" if _grows(folder.log) else "stopped",
            metric="" if known is None else known.metric,
            is_better="more" if recipe is None else recipe.is_better,
            value=None if row is None else row.value,
            published=None if known is None else known.published,
            source="" if known is None else known.source,
            minutes=None if row is None else row.minutes,
            command=manifest.get("command", ""),
            can_trace=recipe is not None and recipe.can_trace and (path / "best").is_dir(),
            example=next(iter(examples), ""),
            note="" if row is None else row.note.replace("**", ""),  # results.md uses bold
        )


def _grows(log: Path) -> bool:
    """Whether a log was written to lately."""
    try:
        return time.time() - log.stat().st_mtime < SILENT
    except OSError:
        return False


def _curve(lines: Sequence[Mapping[str, Any]], score: str) -> Curve:
    steps = [line for line in lines if "loss" in line and "validation" not in line]
    every = max(1, -(-len(steps) // POINTS))
    validations = [line for line in lines if "validation" in line]
    names = sorted({name for line in validations for name in line["validation"]})
    names.sort(key=lambda name: name != score)  # the metric that selects the checkpoint is first
    return Curve(
        step=[line["step"] for line in steps[::every]],
        loss=[line["loss"] for line in steps[::every]],
        validation={
            "step": [line["step"] for line in validations],
            **{name: [line["validation"].get(name) for line in validations] for name in names},
        },
    )
