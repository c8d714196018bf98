"""The folder of a run: what it is, where it stands, how it went.

``manifest.json`` (recipe, settings, versions, command), ``kept.json`` (what the system needs beside
its weights), ``checkpoint/``, ``best/``, ``log.jsonl``, ``loss.png``, at the end ``metrics.json``.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import saccade
from saccade.errors import TrainingError
from saccade.store.atomic import atomic_file, is_temporary, settled_folder
from saccade.store.folder import read_folder, write_folder
from saccade.store.schema import conform, parse_json, with_digest, without_digest
from saccade.zoo.training.checkpoint import read_scores, written_scores
from saccade.zoo.training.config import plain
from saccade.zoo.training.log import finite

# With what a run was made: versions, and the commit of the code.

HERE = Path(saccade.__file__).parent


def versions() -> dict[str, str]:
    """The versions that results may depend on."""
    return {
        "saccade": saccade.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def commit() -> str:
    """The commit that this code was checked out at, with a + if it was changed; else empty."""
    # Code that was installed into a folder inside someone's repository is not of that repository.
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
# Names that runs have which were trained before these were renamed.
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
    """What the manifest of any run says; a caller of `train` may add to it."""

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
    """Of an ensemble."""
    kept_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecipeManifest(Manifest):
    """What the manifest of a recipe's run says besides."""

    recipe: str
    settings: dict[str, Any]
    command: str


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The final numbers that others read."""

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
    """What is known of the best weights."""

    step: Count
    scores: Scores
    mean_of: Count | None = None


@dataclass(frozen=True)
class RunFolder:
    """Reads and writes the parts of a run."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        """Where a killed run goes on."""
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
        """The log as a picture."""
        return self.path / CURVE

    @property
    def manifest(self) -> dict[str, Any]:
        """What was run, and with what."""
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
        """What the system needs beside its weights."""
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
        """The final numbers; empty while the run goes on."""
        for name in (METRICS, OLD_METRICS):
            if (found := self._read(name)) is not None:
                return self._checked(Metrics, found, name)
        return {}

    def exists(self) -> bool:
        """Whether anything is there; the left-overs of a run that was killed as it began are not.

        The manifest is written first, so those are what a write of the store was preparing.
        """
        if not self.path.is_dir():
            return self.path.exists()
        return not all(is_temporary(entry) for entry in self.path.iterdir())

    def has_kept(self) -> bool:
        """False in a run that was killed between its manifest and what it keeps."""
        return (self.path / KEPT).exists() or settled_folder(self.checkpoint).is_dir()

    def begin(self, manifest: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
        """Write what is known before the first step, as far as it is not there yet."""
        if not self.exists():
            about = {"format": FORMAT, **manifest, "kept_sha256": _digest(kept)}
            self._write(MANIFEST, with_digest(plain(about)))
        if not self.has_kept():
            self._write(KEPT, kept)

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write the final numbers."""
        self._write(METRICS, with_digest(plain(finite(metrics))))

    def write_best(self, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Keep weights as the best so far."""
        told = with_digest(plain({**about, "scores": written_scores(about["scores"])}))
        write_folder(self.best, {"kind": BEST_KIND, **told}, {WEIGHTS: weights})

    def read_best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The best weights and what is known of them: ``step`` and ``scores``."""
        if not settled_folder(self.best).is_dir():
            raise TrainingError(
                f"{self.path} has no weights yet: it has not been validated",
                hint="let it run on: `saccade train ... --resume`",
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
        """What a file holds, after its known fields were checked; missing ones have defaults."""
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
