"""Where an interrupted fit resumes: named tensors in the user's cache, checked by hash when read.

A fit is found again by all that determines it, so that the same command resumes it. Of several such
fits at once one keeps checkpoints, and the others work without: a lock that lasts as long as its
process tells them apart. What nobody has resumed for two weeks is removed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade import __version__
from saccade.errors import StoreError
from saccade.processes import Processes, noticing_interrupts
from saccade.store import Hold, cache_dir, locked, read_folder, write_folder
from saccade.store.atomic import write_refused

# Often enough that little is lost, and so seldom that writing (about 250 MB for the default model)
# takes no more than a hundredth of the time, whatever the disk.
EVERY_SECONDS = 30.0
PAUSE_OVER_WRITING = 100
KEPT_SECONDS = 14 * 24 * 3600
STATE = "state.safetensors"
LAYOUT = 2  # of what is stored; other layouts are not found, and removed in time
_LOCK = "lock"
_ATTEMPTS = 100
_ALONE = Processes()


class FitInterrupted(KeyboardInterrupt):
    """A fit was interrupted and has left a checkpoint."""


@dataclass
class Checkpoint:
    """What one process has done of one stage of a fit."""

    folder: Path
    name: str
    is_stopping: Callable[[], bool] = lambda: False
    """Whether somebody has asked for an end: the stage then saves and stops."""
    is_kept: bool = True
    """False: another process keeps the checkpoint of the same fit; nothing is read or written."""
    _written: float = field(default_factory=time.monotonic)
    _writing: float = 0.0

    def load(self) -> dict[str, Tensor] | None:
        """What was saved last, if it is still what was saved."""
        if not self.is_kept:
            return None
        try:
            return read_folder(self.folder / self.name, needs=[STATE]).tensors[STATE]
        except StoreError:
            # None yet, or a damaged one, which costs time but not correctness: begin again.
            return None

    def save_sometimes(
        self, tensors: Callable[[], Mapping[str, Tensor]], *, together: Processes = _ALONE
    ) -> None:
        """Save, unless that was done a moment ago; when asked to stop, save and stop.

        Args:
            together: processes that are at the same step and hold the same: the first one saves,
                and all of them stop at the same step.

        Raises:
            KeyboardInterrupt: somebody has asked for an end, and the checkpoint is saved.
        """
        is_stopping = torch.tensor(int(self.is_stopping()))
        together.largest(is_stopping)
        if together.is_first and (is_stopping or self._is_due()):
            self.save(tensors())
        if is_stopping:
            together.wait()
            raise KeyboardInterrupt

    def _is_due(self) -> bool:
        pause = max(EVERY_SECONDS, PAUSE_OVER_WRITING * self._writing)
        return time.monotonic() - self._written >= pause

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Save now."""
        if not self.is_kept:
            return
        start = time.monotonic()
        write_folder(self.folder / self.name, {"kind": "checkpoint of a fit"}, {STATE: tensors})
        self._written = time.monotonic()
        self._writing = self._written - start


@dataclass(frozen=True)
class UnfinishedFit:
    """The checkpoints of one process of one fit."""

    folder: Path
    is_kept: bool

    @contextmanager
    def stage(self, name: str) -> Iterator[Checkpoint]:
        """The checkpoint of a stage. Ctrl-C is noticed when the stage calls `save_sometimes`."""
        with noticing_interrupts() as is_asked:
            try:
                yield Checkpoint(self.folder, name, is_stopping=is_asked, is_kept=self.is_kept)
            except RuntimeError as error:
                if is_asked():  # the processes that this one waits for have stopped already
                    raise KeyboardInterrupt from error
                raise
        if is_asked():  # after the last step
            raise KeyboardInterrupt

    @property
    def has_checkpoint(self) -> bool:
        """Whether the same fit, started again, would find anything."""
        return self.is_kept and any(path.is_dir() for path in self.folder.glob("[!.]*"))


@contextmanager
def unfinished_fit(settings: Mapping[str, Any], *, rank: int = 0) -> Iterator[UnfinishedFit]:
    """The checkpoints of a fit with exactly these settings; they are removed when the block ends.

    If it fails or is interrupted they are kept.

    Raises:
        FitInterrupted: Ctrl-C ended the block, and the same fit will resume.
        StoreError: the cache cannot be written to.
    """
    said = {**settings, "rank": rank, "layout": LAYOUT, "saccade": __version__}
    text = json.dumps(said, sort_keys=True, default=str)
    root = cache_dir() / "unfinished"
    folder = root / hashlib.sha256(text.encode()).hexdigest()[:16]
    with ExitStack() as stack:
        try:
            is_kept = _taken_up(folder, stack)
        except OSError as error:
            raise write_refused(folder, error) from error
        _sweep(root)
        fit = UnfinishedFit(folder, is_kept)
        is_done = False
        try:
            yield fit
            is_done = True
        except KeyboardInterrupt as error:
            if fit.has_checkpoint:
                raise FitInterrupted("the fit is saved; the same command resumes it") from error
            raise
        finally:
            if is_kept and (is_done or not fit.has_checkpoint):
                shutil.rmtree(folder, ignore_errors=True)


def _taken_up(folder: Path, stack: ExitStack) -> bool:
    """Lock the folder until the stack ends; False if another process has it."""
    for _ in range(_ATTEMPTS):
        folder.mkdir(parents=True, exist_ok=True)
        # The fit that had it may be done, and remove it, at this moment.
        with suppress(FileNotFoundError):
            return stack.enter_context(locked(folder / _LOCK)) is not Hold.TAKEN
    return False


def _sweep(root: Path) -> None:
    """Remove the checkpoints that nobody has written for two weeks, and that nobody holds."""
    for folder in [path for path in root.iterdir() if path.is_dir()]:
        with suppress(OSError):
            written = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
            if time.time() - written < KEPT_SECONDS:
                continue
            with locked(folder / _LOCK) as hold:
                if hold is not Hold.TAKEN:
                    shutil.rmtree(folder, ignore_errors=True)
