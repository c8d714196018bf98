"""Runs and saved traces, found in the folders that were given and asked for by name only."""

from __future__ import annotations

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
POINTS = 400  # of a curve: more than a screen can show
OPEN_RUNS = 2  # trained systems kept in memory
EXAMPLES = {"multi30k": "Ein Hund läuft durch den Schnee."}  # by what the task's name has in it

TraceJson: TypeAlias = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "title": "Trace",
            "description": "Where attention went; README.md has the other parts of each kind.",
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
"""A trace or an image trace with its tensors as lists, which their dataclasses do not have."""


@dataclass(frozen=True, kw_only=True)
class DamagedRun:
    """A run that cannot be read."""

    name: str
    state: Literal["damaged"]
    note: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run beside the published number."""

    name: str
    recipe: str
    about: str
    system: str
    state: Literal["done", "running"]
    """Done once it has its metric."""
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
    """The loss and the validations of a log, thinned to what can be seen."""

    step: list[int]
    loss: list[float | None]
    validation: dict[str, list[int | float | None]]
    """The steps, and each measure at these steps; what the run was chosen by comes first."""


@dataclass(frozen=True, kw_only=True)
class RunDetails(Run):
    """A run with its settings and its curve."""

    settings: dict[str, Any]
    versions: dict[str, Any]
    n_weights: int | None
    began: str
    score: str
    curve: Curve
    metrics: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DamagedDetails(DamagedRun):
    """The same of a run that cannot be read, with nothing in it."""

    settings: dict[str, Any]
    versions: dict[str, Any]
    curve: Curve
    metrics: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SavedTrace:
    """A trace on disk, in short."""

    name: str
    kind: str
    title: str
    n_steps: int


class NotHereError(UsageError):
    """A run or a trace that is not in the folders that were given."""


@final
class Gallery:
    """What lies in some folders. A page names a run; it can never name a path."""

    def __init__(self, folders: Sequence[Path], *, data: Path | None = None) -> None:
        self._data = data
        self._folders = [folder.resolve() for folder in folders]
        self._open: LRUCache[str, TrainedRun] = LRUCache(OPEN_RUNS)

    @cached_property
    def _recipes(self) -> Mapping[str, Entry]:
        from saccade.zoo.recipes.recipe import list_recipes

        return list_recipes()

    def runs(self) -> tuple[Run | DamagedRun, ...]:
        """The runs in the folders that were given."""
        found = self._found(is_run=True)
        return tuple(self._short(name, path) for name, path in found.items())

    def run(self, name: str) -> RunDetails | DamagedDetails:
        """One run with its curve."""
        from saccade.zoo.training.run_folder import RunFolder, read_log

        path = self._path(name, is_run=True)
        folder, short = RunFolder(path), self._short(name, path)
        if isinstance(short, DamagedRun):
            return DamagedDetails(
                **vars(short), settings={}, versions={}, curve=_curve([], ""), metrics={}
            )
        manifest = folder.manifest
        score = manifest.get("score") or ""
        return RunDetails(
            **vars(short),
            settings=manifest.get("settings", {}),
            versions=manifest.get("versions", {}),
            n_weights=manifest.get("n_weights"),
            began=manifest.get("began", ""),
            score=score,
            curve=_curve(read_log(folder.log), score),
            metrics=folder.metrics,
        )

    def trace(self, asked: TraceQuestion, _: Progress) -> list[TraceJson]:
        """Where a trained system looks: as `saccade trace RUN INPUT --json`."""
        from saccade.zoo.recipes.run import load_run

        path, text = self._path(asked.run, is_run=True), asked.input
        if not text.strip():
            raise UsageError(f"the input is empty: {text!r}", hint="give at least one word")
        opened = self._open.get(asked.run)
        if opened is None:
            opened = self._open[asked.run] = load_run(path)
        return [trace.to_dict() for trace in opened.trace(text, data=self._data)]

    def traces(self) -> tuple[SavedTrace, ...]:
        """The saved traces in the folders that were given."""
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
            raise NotHereError(
                f"no {what} {name!r} in the folders that were given",
                hint="`saccade view FOLDER` shows what lies in a folder",
            )
        return found[name]

    def _found(self, *, is_run: bool) -> dict[str, Path]:
        """By name; looked for anew, since runs come while the page is open."""
        found: dict[str, Path] = {}
        for path in self._candidates():
            # A run keeps weights beside its log; a trace has a manifest alone.
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
                # A link may lead out of what was given.
                if path.is_dir() and path.resolve().is_relative_to(folder):
                    yield path

    def _short(self, name: str, path: Path) -> Run | DamagedRun:
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
        shown = [*own, *(text for key, text in EXAMPLES.items() if key in task)]
        known = row or recipe  # an ensemble's row does not have all that its recipe says
        return Run(
            name=name,
            recipe=manifest.get("recipe", ""),
            about="" if recipe is None else recipe.about,
            system=manifest.get("system", ""),
            state="running" if row is None else "done",
            metric="" if known is None else known.metric,
            is_better="more" if recipe is None else recipe.is_better,
            value=None if row is None else row.value,
            published=None if known is None else known.published,
            source="" if known is None else known.source,
            minutes=None if row is None else row.minutes,
            command=manifest.get("command", ""),
            can_trace=recipe is not None and recipe.can_trace and (path / "best").is_dir(),
            example=next(iter(shown), ""),
            note="" if row is None else row.note.replace("**", ""),  # results.md has it in bold
        )


def _curve(lines: Sequence[Mapping[str, Any]], score: str) -> Curve:
    steps = [line for line in lines if "loss" in line and "validation" not in line]
    every = max(1, -(-len(steps) // POINTS))
    tried = [line for line in lines if "validation" in line]
    names = sorted({name for line in tried for name in line["validation"]})
    names.sort(key=lambda name: name != score)  # what the run was chosen by comes first
    return Curve(
        step=[line["step"] for line in steps[::every]],
        loss=[line["loss"] for line in steps[::every]],
        validation={
            "step": [line["step"] for line in tried],
            **{name: [line["validation"].get(name) for line in tried] for name in names},
        },
    )
