"""A training under way: what the loop holds, and how it saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from saccade.errors import MissingPackageError
from saccade.processes import Processes
from saccade.training.checkpoint import Checkpoint, optimiser_tensors, save_checkpoint
from saccade.training.config import TrainConfig
from saccade.training.curves import save_curves
from saccade.training.job import Job
from saccade.training.log import Log, Window, read_log
from saccade.training.randomness import random_state
from saccade.training.run_folder import RunFolder
from saccade.training.state import TrainState

# Called with the stage, how much of it is done, of how much, and a word on how it goes.
Progress = Callable[[str, int, int, str], None]


class Wishes(NamedTuple):
    """What any of the processes wants, so that all do it at the same step."""

    end: bool = False
    """The time is up."""
    stop: bool = False
    """Someone has pressed Ctrl-C."""
    save: bool = False


class Clock:
    """Seconds spent on a run, those before it was taken up again included."""

    def __init__(self, spent: float) -> None:
        self._started = time.monotonic() - spent

    @property
    def seconds(self) -> float:
        """All so far."""
        return time.monotonic() - self._started


@dataclass
class Run:
    """What a training holds from its first step to its last."""

    job: Job
    folder: RunFolder
    processes: Processes
    device: torch.device
    state: TrainState
    optimiser: Optimizer | None
    """None where nothing is trained."""
    loss: nn.Module
    window: Window
    log: Log
    clock: Clock
    is_interrupted: Callable[[], bool]
    progress: Progress | None
    wishes: Wishes
    line_began: float
    """When the current line of the log began, in seconds on the clock."""
    saved: float
    """When the last checkpoint was written."""
    drawn: float
    """When the log was last drawn."""
    note: str = ""
    """How it goes, for the progress bar."""

    @property
    def config(self) -> TrainConfig:
        """The job's."""
        return self.job.config

    def save(self) -> None:
        """Write a checkpoint; if a number of the last steps is not finite, keep the old one."""
        self.window.means(last_step=self.state.step)
        self.state.seconds = self.clock.seconds
        random = _gathered(random_state(), self.processes)
        carried = self.job.carried.read() if self.job.carried else {}
        carried = _gathered(carried, self.processes)
        window = self.window.tensors()
        if self.processes.is_first:
            held = Checkpoint(
                state=self.state,
                weights=self.job.model.state_dict(),
                optimiser=optimiser_tensors(self.optimiser) if self.optimiser else {},
                random=random,
                carried=carried,
                window=window,
            )
            save_checkpoint(self.folder.checkpoint, held)
        self.saved = self.clock.seconds

    def draw(self) -> None:
        """Draw the log; a picture is no reason to lose a training if matplotlib is missing."""
        with suppress(MissingPackageError):
            lines = read_log(self.folder.log) if self.folder.log.exists() else []
            title = self.folder.path.name
            save_curves(self.folder.curve, lines, score=self.job.score, title=title)
        self.drawn = self.clock.seconds


def _gathered(state: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """What every process holds, by rank."""
    return {
        f"{rank}.{name}": value
        for name, own in state.items()
        for rank, value in enumerate(processes.in_order(own if own.dim() else own[None]))
    }
