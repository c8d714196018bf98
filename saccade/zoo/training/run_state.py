"""The state of a running training: start, resume, checkpoints."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from saccade.distributed import Processes
from saccade.errors import MissingPackageError, TrainingError, UsageError
from saccade.zoo.training.checkpoint import (
    Checkpoint,
    TrainState,
    forget_after,
    load_checkpoint,
    load_optimiser,
    load_weights,
    optimiser_tensors,
    random_state,
    save_checkpoint,
    seed_all,
    set_random_state,
)
from saccade.zoo.training.job import Job, Means, Window, shared_loss
from saccade.zoo.training.optim import make_optimiser
from saccade.zoo.training.run_folder import Log, RunFolder, commit, read_log, save_curves, versions
from saccade.zoo.training.settings import TrainConfig, differences

# Called with the stage, the steps done, the total, and a short status.
Progress = Callable[[str, int, int, str], None]

# A training diverges when the loss of each of MAX_HIGH steps in a row is more than HIGH times that
# of the first step (or 1, if that is less). An untrained model guesses, which costs log(d_vocab)
# nats; a hundred times as much is confidently wrong. Spikes that training recovers from reach a few
# times the first loss, for a few steps.
HIGH, MAX_HIGH = 100.0, 10


class Wishes(NamedTuple):
    """Requests of any process, so that all act at the same step."""

    end: bool = False
    """The time is up."""
    stop: bool = False
    """Ctrl-C was pressed."""
    save: bool = False


class Clock:
    """Seconds spent on a run, including those before it was resumed."""

    def __init__(self, spent: float) -> None:
        self._started = time.monotonic() - spent

    @property
    def seconds(self) -> float:
        """Total so far."""
        return time.monotonic() - self._started


@dataclass
class Run:
    """The state of a training from its first step to its last."""

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
    """Consecutive steps, up to the last checked one, whose loss was far above the first."""
    note: str = ""
    """Short status for the progress bar."""

    @property
    def config(self) -> TrainConfig:
        """The job's training settings."""
        return self.job.config

    def means(self) -> Means:
        """Means over the steps since the last line of the log.

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
        """The error for a training whose loss is far above that of the first step.

        Args:
            step: where it is noticed; default: the current step.
        """
        return TrainingError(
            f"the training diverges: the loss is {self.state.high_loss:.4g} at step "
            f"{step or self.state.step}, it was {self.state.first_loss:.4g} at the first",
            hint="a lower learning_rate, a longer warmup or a smaller clip may help, in a new run; "
            + self._kept(),
        )

    def _kept(self) -> str:
        if not self.state.best:
            return "no weights were stored"
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
        """Draw the log; a missing matplotlib must not end a training."""
        with suppress(MissingPackageError):
            lines = read_log(self.folder.log) if self.folder.log.exists() else []
            title = self.folder.path.name
            save_curves(self.folder.curve, lines, score=self.job.score, title=title)
        self.drawn = self.clock.seconds


def _gathered(state: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """The values of every process, by rank."""
    return {
        f"{rank}.{name}": value
        for name, own in state.items()
        for rank, value in enumerate(processes.in_order(own if own.dim() else own[None]))
    }


# The start of a training, or its resumption from a checkpoint.


def begin_run(
    job: Job,
    folder: Path,
    *,
    about: Mapping[str, Any],
    resume: bool,
    processes: Processes,
    is_interrupted: Callable[[], bool],
    progress: Progress | None,
) -> Run:
    """Create the folder of a new run, or resume from its checkpoint."""
    place = RunFolder(folder)
    _check_folder(place, job, about, resume=resume)
    processes.wait()  # all have checked before the first one writes
    log = Log(place.log)
    if processes.is_first:
        place.begin(_manifest(job, about, processes), job.kept)
    device = device_of(job.config.device)
    job.model.to(device)
    put_channels_innermost(job.model)
    seed_all(job.config.seed, rank=processes.rank)
    is_trained = bool(job.config.epochs or job.config.steps or job.config.minutes)
    optimiser = make_optimiser(job.model, job.config, rates=job.rates) if is_trained else None
    window = Window(processes)
    saved = load_checkpoint(place.checkpoint) if resume else None
    state = saved.state if saved else TrainState()
    if state.best and not math.isfinite(state.best.get(job.score, math.nan)):
        raise TrainingError(
            f"{place.checkpoint} has no {job.score!r} of its best weights",
            hint="start another run with --out",
        )
    if saved:
        load_weights(job.model, saved.weights, source=place.checkpoint)
        if optimiser:
            load_optimiser(optimiser, saved.optimiser)
        window.restore(saved.window, device=device)
        _restore_own(saved, job, processes, device)
    processes.wait()  # all have read before the first one writes
    if processes.is_first:
        log.cut(step=state.step, validated=state.validated)
        forget_after(place.recent, state.validated)
    limit = job.config.minutes * 60
    return Run(
        job=job,
        folder=place,
        processes=processes,
        device=device,
        state=state,
        optimiser=optimiser,
        loss=shared_loss(job, processes, device) if is_trained else nn.Identity(),
        window=window,
        log=log,
        clock=Clock(state.seconds),
        is_interrupted=is_interrupted,
        progress=progress,
        wishes=Wishes(end=bool(limit) and state.seconds >= limit),
        line_began=state.seconds,
        saved=state.seconds,
        drawn=state.seconds,
    )


def put_channels_innermost(model: nn.Module) -> None:
    """Use the channels-last memory format, in which convolutions and poolings are faster.

    >>> filters = nn.Conv2d(2, 3, 5)
    >>> put_channels_innermost(filters)
    >>> filters.weight.stride()
    (50, 1, 10, 2)
    """
    for weight in model.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def device_of(name: str) -> torch.device:
    """The device a training runs on; of torchrun's processes each takes a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"there is no device {name!r}", hint="cpu, cuda, or cuda:1") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"there is no device {name}: torch finds {torch.cuda.device_count()} GPUs here",
            hint="--set device=cpu, or as many processes as there are GPUs",
        )
    return device


def refused_to_replace(place: RunFolder) -> TrainingError:
    """The error for a run that would overwrite another."""
    return TrainingError(
        f"{place.path} exists already",
        hint="--resume continues it, --out DIR starts another",
    )


def _check_folder(place: RunFolder, job: Job, about: Mapping[str, Any], *, resume: bool) -> None:
    if not place.exists():
        return
    if not resume:
        raise refused_to_replace(place)
    manifest, free = place.manifest, job.config.may_change()
    name = "settings" if "settings" in about else "config"
    asked = about["settings"] if name == "settings" else asdict(job.config)
    wrong = differences(manifest.get(name) or {}, asked, free=free)
    if (recipe := manifest.get("recipe")) != (now := about.get("recipe")):
        wrong = f"recipe: the run has {recipe!r}, asked for is {now!r}"
    if wrong:
        raise TrainingError(
            f"{place.path} was started with other settings: {wrong}",
            hint="leave out what differs, or start another run with --out",
        )
    before = place.kept if place.has_kept() else job.kept
    if changed := differences(before, job.kept, free=frozenset()):
        raise TrainingError(
            f"{place.path} was started with other data: {changed[:200]}",
            hint="set --data to the folder that it was started with",
        )


def _manifest(job: Job, about: Mapping[str, Any], processes: Processes) -> dict[str, Any]:
    return {
        **({} if "settings" in about else {"config": asdict(job.config)}),
        **about,
        "score": job.score,
        "system": type(job.model).__name__,
        "n_weights": sum(weight.numel() for weight in job.model.parameters()),
        "versions": versions(),
        "commit": commit(),
        "processes": processes.world,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _restore_own(saved: Checkpoint, job: Job, processes: Processes, device: torch.device) -> None:
    """Restore this process's own state, if the number of processes is the same."""
    prefix = f"{processes.rank}."
    random, carried = (
        {name[len(prefix) :]: value for name, value in held.items() if name.startswith(prefix)}
        for held in (saved.random, saved.carried)
    )
    if sum(name.endswith(".torch") for name in saved.random) == processes.world:
        set_random_state(random)
    else:
        seed_all(job.config.seed + saved.state.step, rank=processes.rank)
        carried = {}  # its rows were different
    if job.carried:
        job.carried.write({name: value.to(device) for name, value in carried.items()})
