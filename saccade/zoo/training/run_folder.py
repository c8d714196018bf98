"""The folder of a run: its files, and how they are read and written.

``manifest.json`` (recipe, settings, versions, command), ``kept.json`` (what the system needs in
addition to its weights), ``checkpoint/``, ``best/``, ``log.jsonl``, ``loss.png``, at the end
``metrics.json``.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import saccade
from saccade.errors import MissingPackageError, StoreError, TrainingError
from saccade.store.atomic import atomic_file, is_temporary, settled_folder, write_refused
from saccade.store.folder import read_folder, write_folder
from saccade.store.schema import conform, parse_json, with_digest, without_digest
from saccade.zoo.training.checkpoint import read_scores, written_scores
from saccade.zoo.training.settings import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Provenance of a run: versions, and the commit of the code.

HERE = Path(saccade.__file__).parent


def versions() -> dict[str, str]:
    """The versions that results may depend on."""
    return {
        "saccade": saccade.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def commit() -> str:
    """The commit of this code, with a + if it was changed; empty outside its repository."""
    # Code that is installed inside another repository does not belong to it.
    if not _git("ls-files", "__init__.py"):
        return ""
    changed = "+" if _git("status", "--porcelain", "--untracked-files=no", ".") else ""
    return _git("rev-parse", "--short=10", "HEAD") + changed


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(HERE), *words],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


FORMAT = 1
# Old names in runs that were trained before these were renamed.
OLD_METRICS = "figures.json"
RENAMED = {"coder": "tokenizer", "coders": "tokenizers"}
MANIFEST, KEPT, METRICS, LOG, CURVE = (
    "manifest.json",
    "kept.json",
    "metrics.json",
    "log.jsonl",
    "loss.png",
)
WEIGHTS = "weights.safetensors"
BEST_KIND = "saccade weights"


AGAIN = "copy the run again, or train it again"
Count = Annotated[int, Ge(0)]
Scores = dict[str, float | Literal["nan", "inf", "-inf"]]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of any run; a caller of `train` may add to it."""

    format: Annotated[int, Ge(1)]
    config: dict[str, Any] | None = None
    score: str = ""
    system: str = ""
    n_weights: Count = 0
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    processes: Annotated[int, Ge(1)] = 1
    began: str = ""
    runs: list[str] = field(default_factory=list)
    """The runs of an ensemble."""
    kept_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecipeManifest(Manifest):
    """The additional fields in the manifest of a recipe's run."""

    recipe: str
    settings: dict[str, Any]
    command: str


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The final metrics."""

    recipe: str | None = None
    metric: str | None = None
    value: float | None = None
    test: dict[str, float | None] | None = None
    validation: dict[str, float | None] | None = None
    minutes: Annotated[float, Ge(0)] | None = None
    steps: Count | None = None
    best_step: Count | None = None
    ended: str | None = None
    evaluated: str | None = None


@dataclass(frozen=True, kw_only=True)
class Best:
    """The description of the best weights."""

    step: Count
    scores: Scores
    mean_of: Count | None = None


@dataclass(frozen=True)
class RunFolder:
    """Reads and writes the parts of a run."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        """The checkpoint to resume from."""
        return self.path / "checkpoint"

    @property
    def best(self) -> Path:
        """The weights with the best validation score."""
        return self.path / "best"

    @property
    def recent(self) -> Path:
        """The weights of the last validations, if they are to be averaged."""
        return self.path / "recent"

    @property
    def log(self) -> Path:
        """One JSON object a line."""
        return self.path / LOG

    @property
    def curve(self) -> Path:
        """The plot of the log."""
        return self.path / CURVE

    @property
    def manifest(self) -> dict[str, Any]:
        """Recipe, settings and provenance."""
        found = self._read(MANIFEST)
        if found is None:
            what = "no manifest.json in it" if self.path.is_dir() else "no such folder"
            raise TrainingError(
                f"{self.path} is no run of saccade: {what}",
                hint="give the folder that `saccade train` named, such as runs/NAME",
            )
        version = found.get("format")
        if type(version) is int and version > FORMAT:
            raise TrainingError(
                f"{self.path} has format {version}, this saccade reads up to {FORMAT}",
                hint="it was written by a newer saccade: `pip install --upgrade saccade`",
            )
        kind = RecipeManifest if "recipe" in found else Manifest
        return self._checked(kind, found, MANIFEST)

    @property
    def kept(self) -> dict[str, Any]:
        """What the system needs in addition to its weights."""
        found = self._read(KEPT) or {}
        if (expected := self.manifest.get("kept_sha256")) not in (None, _digest(found)):
            raise TrainingError(
                f"{self.path / KEPT} was changed after it was written: expected sha256 "
                f"{expected[:16]}..., found {_digest(found)[:16]}...",
                hint="copy the run again, or train it again",
            )
        return {RENAMED.get(key, key): value for key, value in found.items()}

    @property
    def metrics(self) -> dict[str, Any]:
        """The final metrics; empty while the run is not finished."""
        for name in (METRICS, OLD_METRICS):
            if (found := self._read(name)) is not None:
                return self._checked(Metrics, found, name)
        return {}

    def exists(self) -> bool:
        """Whether the run exists; left-overs of a run that was killed at its start do not count.

        The manifest is written first, so those are temporary files of the store.
        """
        if not self.path.is_dir():
            return self.path.exists()
        return not all(is_temporary(entry) for entry in self.path.iterdir())

    def has_kept(self) -> bool:
        """False in a run that was killed between its manifest and ``kept.json``."""
        return (self.path / KEPT).exists() or settled_folder(self.checkpoint).is_dir()

    def begin(self, manifest: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
        """Write the manifest and ``kept.json``, if they are missing."""
        if not self.exists():
            about = {"format": FORMAT, **manifest, "kept_sha256": _digest(kept)}
            self._write(MANIFEST, with_digest(plain(about)))
        if not self.has_kept():
            self._write(KEPT, kept)

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write the final metrics."""
        self._write(METRICS, with_digest(plain(finite(metrics))))

    def write_best(self, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Store weights as the best so far."""
        description = with_digest(plain({**about, "scores": written_scores(about["scores"])}))
        write_folder(self.best, {"kind": BEST_KIND, **description}, {WEIGHTS: weights})

    def read_best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The best weights, and their ``step`` and ``scores``."""
        if not settled_folder(self.best).is_dir():
            raise TrainingError(
                f"{self.path} has no weights yet: it has not been validated",
                hint="resume it: `saccade train ... --resume`",
            )
        folder = read_folder(self.best, needs=[WEIGHTS])
        where = self.best / MANIFEST
        rest = ("format", "files", "kind")
        held = {name: value for name, value in folder.manifest.items() if name not in rest}
        if (kind := folder.manifest.get("kind")) != BEST_KIND:
            raise TrainingError(f"{where} is of kind {kind!r}, not {BEST_KIND!r}", hint=AGAIN)
        about = asdict(conform(Best, without_digest(held, where=where), where=where))
        return folder.tensors[WEIGHTS], {**about, "scores": read_scores(about["scores"])}

    def _checked(self, kind: type, found: dict[str, Any], name: str) -> dict[str, Any]:
        """The content of a file, with its known fields checked; missing ones have defaults."""
        where = self.path / name
        held = without_digest(found, where=where)
        known = {field.name for field in fields(kind)}
        checked = conform(kind, {key: held[key] for key in held if key in known}, where=where)
        given = {key: value for key, value in asdict(checked).items() if value is not None}
        return {**held, **given}

    def _read(self, name: str) -> dict[str, Any] | None:
        file = self.path / name
        try:
            text = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise TrainingError(f"{file} cannot be read: {error}", hint=AGAIN) from error
        found = parse_json(text, where=file)
        if not isinstance(found, dict):
            raise TrainingError(f"{file} holds no JSON object", hint=AGAIN)
        return found

    def _write(self, name: str, values: Mapping[str, Any]) -> None:
        with atomic_file(self.path / name) as temporary:
            text = json.dumps(dict(values), indent=2, ensure_ascii=False) + "\n"
            temporary.write_text(text, encoding="utf-8")


def _digest(values: Mapping[str, Any]) -> str:
    return with_digest(plain(values))["sha256"]


# The log: one JSON object a line, for every `log_steps` steps and for every validation.


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The checked fields of a line."""

    step: Annotated[int, Ge(0)]
    loss: float | None = None
    validation: dict[str, float | None] = field(default_factory=dict)


LINE = tuple(each.name for each in fields(_Line))


class Log:
    """Appends whole lines to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line; NaN and infinity become null."""
        whole = json.dumps(finite(line), ensure_ascii=False, allow_nan=False)
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(whole + "\n")
        except OSError as error:
            raise write_refused(self._path, error) from error

    def cut(self, *, step: int, validated: int) -> None:
        """Remove the steps after ``step`` and the validations after that of step ``validated``."""
        if not self._path.exists():
            return
        kept = [
            json.dumps(line, ensure_ascii=False)
            for line in read_log(self._path)
            if line["step"] <= (validated if "validation" in line else step)
        ]
        with atomic_file(self._path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; an incomplete last line of a killed process is ignored."""
    lines = []
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        raise TrainingError(f"{path} cannot be read: {error}", hint="check the path") from error
    for number, text in enumerate(texts, start=1):
        try:
            line = parse_json(text, where=f"line {number} of {path}")
            checked = {name: line[name] for name in LINE if name in line} if line else line
            conform(_Line, checked, where=f"line {number} of {path}")
        except (StoreError, TypeError):
            if number == len(texts):
                break
            raise
        lines.append(line)
    return lines


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has no number for them."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


# The plot of a log: the loss, and below it the validation's score.

WIDTH, HEIGHT = 8.0, 3.0  # inches, of one panel


def save_curves(
    path: Path, lines: Sequence[Mapping[str, Any]], *, score: str, title: str = ""
) -> None:
    """Write a PNG of a log's lines.

    Args:
        score: which of the validation's scores to draw.
    """
    figure = draw_curves(lines, score=score, title=title)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def draw_curves(lines: Sequence[Mapping[str, Any]], *, score: str, title: str = "") -> Figure:
    """The same as a matplotlib figure, for notebooks."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a curve needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    steps = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    scores = [
        (line["step"], line["validation"].get(score)) for line in lines if "validation" in line
    ]
    panels = [("loss", steps, "-")] if steps else []
    panels += [(f"validation: {score}", scores, "o-")] if scores else []
    n_panels = max(1, len(panels))
    figure = Figure(figsize=(WIDTH, HEIGHT * n_panels), layout="constrained")
    # A separate canvas instead of pyplot's: no window is opened and no state is kept.
    FigureCanvasAgg(figure)
    axes = figure.subplots(n_panels, 1, sharex=True, squeeze=False)[:, 0]
    for place, (name, points, style) in zip(axes, panels, strict=False):
        _panel(place, name, points, style)
    axes[-1].set_xlabel("step")
    if title:
        figure.suptitle(title, fontsize="medium", parse_math=False)
    return figure


def _panel(axes: Axes, name: str, points: Sequence[tuple[int, Any]], style: str) -> None:
    known = [(step, value) for step, value in points if value is not None]
    axes.plot(*zip(*known, strict=True), style, linewidth=1, markersize=3) if known else None
    axes.set_ylabel(name, parse_math=False)
    axes.grid(alpha=0.3)
