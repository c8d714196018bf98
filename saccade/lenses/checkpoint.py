"""Where a killed fit goes on: named tensors in the user's cache, replaced as a whole."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.errors import StoreError
from saccade.store import cache_dir, load_tensors, save_tensors

# Often enough that little is lost, and so seldom that writing (about 250 MB for the default model)
# takes no more than a hundredth of the time, whatever the disk.
EVERY_SECONDS = 30.0
PAUSE_OVER_WRITING = 100


@dataclass
class Checkpoint:
    """What one process had done of one fit; found again by all that determines the fit."""

    folder: Path
    name: str
    _written: float = field(default_factory=time.monotonic)
    _writing: float = 0.0

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, stage: str, rank: int) -> Checkpoint:
        """The checkpoint of a fit with exactly these settings."""
        text = json.dumps(settings, sort_keys=True, default=str)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        return cls(cache_dir() / "unfinished" / key, f"{stage}-{rank}.safetensors")

    def load(self) -> dict[str, Tensor] | None:
        """What was saved last, if anything."""
        path = self.folder / self.name
        if not path.exists():
            return None
        try:
            return load_tensors(path)
        except StoreError:
            # A damaged checkpoint costs time, not correctness: begin again.
            return None

    def save_sometimes(self, tensors: Callable[[], Mapping[str, Tensor]]) -> None:
        """Save, unless that was done a moment ago."""
        if time.monotonic() - self._written >= max(
            EVERY_SECONDS, PAUSE_OVER_WRITING * self._writing
        ):
            self.save(tensors())

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Save now."""
        start = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        save_tensors(self.folder / self.name, tensors)
        self._written = time.monotonic()
        self._writing = self._written - start

    def clear(self) -> None:
        """Forget the whole fit: it is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
