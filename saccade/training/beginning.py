"""How a training begins, or is taken up again where its checkpoint is."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saccade.errors import TrainingError, UsageError
from saccade.processes import Processes
from saccade.training.averaging import forget_after
from saccade.training.checkpoint import Checkpoint, load_checkpoint, load_optimiser, load_weights
from saccade.training.differences import differences
from saccade.training.job import Job
from saccade.training.log import Log, Window
from saccade.training.optimisers import make_optimiser
from saccade.training.provenance import commit, versions
from saccade.training.randomness import seed_all, set_random_state
from saccade.training.run import Clock, Progress, Run, Wishes
from saccade.training.run_folder import RunFolder
from saccade.training.sharing import shared_loss
from saccade.training.state import TrainState


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
    """Make the folder of a new run, or take up an old one where its checkpoint is."""
    place = RunFolder(folder)
    _check_folder(place, job, about, resume=resume)
    processes.wait()  # all have looked before the first one writes
    log = Log(place.log)
    if processes.is_first and not (place.exists() and place.has_kept()):
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
            hint="begin another run with --out",
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
    """Lay filters over images out in memory so that convolutions and poolings take less time.

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
    """The error for a run that would be written over another."""
    return TrainingError(
        f"{place.path} is there already",
        hint="--resume goes on with it, --out DIR begins another",
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
            f"{place.path} was begun with other settings: {wrong}",
            hint="leave out what differs, or begin another run with --out",
        )
    before = place.kept if place.has_kept() else job.kept
    if changed := differences(before, job.kept, free=frozenset()):
        raise TrainingError(
            f"{place.path} was begun with other data: {changed[:200]}",
            hint="--data names the folder that it was begun with",
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
    """What was this process's own, if there were as many of them before."""
    prefix = f"{processes.rank}."
    random, carried = (
        {name[len(prefix) :]: value for name, value in held.items() if name.startswith(prefix)}
        for held in (saved.random, saved.carried)
    )
    if sum(name.endswith(".torch") for name in saved.random) == processes.world:
        set_random_state(random)
    else:
        seed_all(job.config.seed + saved.state.step, rank=processes.rank)
        carried = {}  # its rows were others
    if job.carried:
        job.carried.write({name: value.to(device) for name, value in carried.items()})
