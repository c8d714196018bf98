"""The folder of a run: what it is, where it stands, how it went.

``manifest.json`` (recipe, settings, versions, command), ``kept.json`` (what the system needs beside
its weights), ``checkpoint/``, ``best/``, ``log.jsonl``, ``loss.png``, at the end ``figures.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.errors import TrainingError
from saccade.store import atomic_file, read_manifest, read_tensors, write_folder

FORMAT = 1
MANIFEST, KEPT, FIGURES, LOG, CURVE = (
    "manifest.json",
    "kept.json",
    "figures.json",
    "log.jsonl",
    "loss.png",
)
WEIGHTS = "weights.safetensors"


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
        if found.get("format", 0) > FORMAT:
            raise TrainingError(
                f"{self.path} has format {found['format']}, this saccade reads up to {FORMAT}",
                hint="it was written by a newer saccade: `pip install --upgrade saccade`",
            )
        return found

    @property
    def kept(self) -> dict[str, Any]:
        """What the system needs beside its weights."""
        return self._read(KEPT) or {}

    @property
    def figures(self) -> dict[str, Any]:
        """The final numbers; empty while the run goes on."""
        return self._read(FIGURES) or {}

    def exists(self) -> bool:
        """Whether anything is there."""
        return self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))

    def begin(self, manifest: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
        """Write what is known before the first step."""
        self._write(KEPT, kept)
        self._write(MANIFEST, {"format": FORMAT, **manifest})

    def write_figures(self, figures: Mapping[str, Any]) -> None:
        """Write the final numbers."""
        self._write(FIGURES, figures)

    def write_best(self, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Keep weights as the best so far."""
        write_folder(self.best, {"kind": "saccade weights", **about}, {WEIGHTS: weights})

    def read_best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The best weights and what is known of them."""
        if not self.best.is_dir():
            raise TrainingError(
                f"{self.path} has no weights yet: it has not been validated",
                hint="let it run on: `saccade train ... --resume`",
            )
        return read_tensors(self.best, WEIGHTS), read_manifest(self.best)

    def _read(self, name: str) -> dict[str, Any] | None:
        file = self.path / name
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise TrainingError(f"{file} cannot be read: {error}", hint="is it damaged?") from error
        if not isinstance(found, dict):
            raise TrainingError(f"{file} holds no JSON object", hint="is it damaged?")
        return found

    def _write(self, name: str, values: Mapping[str, Any]) -> None:
        with atomic_file(self.path / name) as temporary:
            text = json.dumps(dict(values), indent=2, ensure_ascii=False) + "\n"
            temporary.write_text(text, encoding="utf-8")
