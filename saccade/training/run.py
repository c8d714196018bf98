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

from saccade.errors import MissingPackageError, TrainingError
from saccade.processes import Processes
from saccade.training.checkpoint import Checkpoint, optimiser_tensors, save_checkpoint
from saccade.training.config import TrainConfig
from saccade.training.curves import save_curves
from saccade.training.job import Job
from saccade.training.log import Log, Means, Window, read_log
from saccade.training.randomness import random_state
from saccade.training.run_folder import RunFolder
from saccade.training.state import TrainState

# Called with the stage, how much of it is done, of how much, and a word on how it goes.
Progress = Callable[[str, int, int, str], None]

# A training diverges when the loss of each of MAX_HIGH steps in a row is more than HIGH times that
# of the first step (or 1, if that is less). An untrained model guesses, which costs log(d_vocab)
# nats; a hundred times as much is confidently wrong. Spikes that training recovers from reach a few
# times the first loss, for a few steps.
HIGH, MAX_HIGH = 100.0, 10


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
    n_high: int = 0
    """Steps in a row, up to the last that was looked at, whose loss was far above the first."""
    note: str = ""
    """How it goes, for the progress bar."""

    @property
    def config(self) -> TrainConfig:
        """The job's."""
        return self.job.config

    def means(self) -> Means:
        """What the steps since the last line of the log were like.

        Raises:
            TrainingError: a loss or a gradient is not finite, or the training diverges.
        """
        try:
            means = self.window.means(last_step=self.state.step)
        except TrainingError as error:
            raise TrainingError(str(error), hint=f"{error.hint}; {self._kept()}") from error
        n_high = self.state.n_high
        for at, loss in enumerate(means.losses):
            if self.state.first_loss is None:
                self.state.first_loss = loss
            n_high = n_high + 1 if loss > HIGH * max(1.0, abs(self.state.first_loss)) else 0
            if n_high:
                self.state.high_loss = loss
            if n_high == MAX_HIGH:
                raise self.diverged(step=self.state.step - len(means.losses) + 1 + at)
        self.n_high = n_high
        return means

    def diverged(self, *, step: int | None = None) -> TrainingError:
        """The error for a training whose loss has left the range of its beginning.

        Args:
            step: where it is noticed; the current one unless told.
        """
        return TrainingError(
            f"the training diverges: the loss is {self.state.high_loss:.4g} at step "
            f"{step or self.state.step}, it was {self.state.first_loss:.4g} at the first",
            hint="a lower learning_rate, a longer warmup or a smaller clip may help, in a new run; "
            + self._kept(),
        )

    def _kept(self) -> str:
        if not self.state.best:
            return "no weights were worth keeping"
        score, folder = self.state.best[self.job.score], self.folder.path
        return (
            f"the best weights, of step {self.state.best_step} ({self.job.score} {score:.4g}), are "
            f"kept in {folder}"
        )

    def save(self) -> None:
        """Write a checkpoint; if a number of the last steps is not finite, keep the old one."""
        self.means()
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
