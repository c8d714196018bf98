"""The one training loop.

    while not over:
        for batch in epoch:
            step; now and then log, validate, save
        validate

The rest keeps three guarantees: a killed run resumes on the same curve, bit for bit in one process;
several processes compute the same as one, up to rounding; and values are fetched from a GPU only as
often as the log needs them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sized
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from saccade.distributed import joined, noticing_interrupts
from saccade.errors import TrainingError
from saccade.zoo.training.checkpoint import (
    average_recent,
    keep_recent,
    load_weights,
    own_randomness,
)
from saccade.zoo.training.job import NOTHING, Curriculum, Job, moved, share_of
from saccade.zoo.training.optim import check_schedule, rate_at, set_rate
from saccade.zoo.training.run_state import Progress, Run, Wishes, begin_run, device_of

# Validation: scores on held-out data, best weights and early stopping.

# Drawing takes about half a second.
DRAW_SECONDS = 30.0


class Found(NamedTuple):
    """The result of a validation, the same in every process."""

    scores: dict[str, float]
    """All scores in the first process, in the others only the watched one."""
    is_done: bool
    is_passed: bool
    """This stage of the curriculum is passed, and there is another."""


def validate(run: Run) -> bool:
    """Validate, store the model if it is the best, log; returns whether the next stage begins."""
    run.means()  # raises if the training has diverged
    began = run.clock.seconds
    found = _shared(run)
    state, score = run.state, found.scores[run.job.score]
    state.validated, state.is_done = state.step, found.is_done
    # Weights whose loss is far above that of the first step are never the best ones.
    if not run.n_high and run.job.beats(score, state.best.get(run.job.score)):
        state.best, state.best_step, state.stale = found.scores, state.step, 0
        if run.processes.is_first:
            about = {"step": state.step, "scores": found.scores}
            run.folder.write_best(run.job.model.state_dict(), about)
    elif _is_last_stage(run):
        _be_patient(run)
    run.note = f"{run.job.score} {score:.4g}"
    if run.processes.is_first:
        run.log.write({"step": state.step, "epoch": state.epoch, "validation": found.scores})
        if n := run.config.average_last:
            weights = run.job.model.state_dict()
            keep_recent(run.folder.recent, weights, step=state.step, n=n)
        if run.clock.seconds - run.drawn > DRAW_SECONDS:
            run.draw()
    if found.is_passed:
        state.stage, state.stage_scores, state.stale = state.stage + 1, [], 0
    run.line_began += run.clock.seconds - began  # units a second exclude validation
    return found.is_passed


def scores_of(run: Run) -> dict[str, float]:
    """The scores of the current model; random draws here do not affect the training."""
    model = run.job.model
    model.eval()
    with own_randomness(run.config.seed), torch.no_grad():
        scores = {name: float(value) for name, value in run.job.validate(model).items()}
    model.train()
    if run.job.score not in scores:
        raise TrainingError(
            f"validation gives no {run.job.score!r}, it gives {', '.join(scores) or 'nothing'}",
            hint="name one of these as the job's score",
        )
    if not math.isfinite(score := scores[run.job.score]):
        raise TrainingError(
            f"the validation's {run.job.score} is {score} at step {run.state.step}",
            hint="the last checkpoint is kept; look at the validation data",
        )
    return scores


def _shared(run: Run) -> Found:
    """The first process validates; the others wait for the result."""
    shared = torch.zeros(3, dtype=torch.float64)
    scores: dict[str, float] = {}
    if run.processes.is_first:
        scores = scores_of(run)
        run.state.stage_scores.append(scores)
        is_done = run.job.is_done is not None and run.job.is_done(scores)
        shared[:] = torch.tensor([scores[run.job.score], is_done, _is_passed(run)])
    run.processes.from_first([shared])
    score, is_done, is_passed = shared.tolist()
    return Found(scores or {run.job.score: score}, bool(is_done), bool(is_passed))


def _is_passed(run: Run) -> bool:
    batches = run.job.batches
    if not isinstance(batches, Curriculum) or _is_last_stage(run):
        return False
    return batches.is_passed(run.state.stage_scores, run.state.stage)


def _is_last_stage(run: Run) -> bool:
    batches = run.job.batches
    return not isinstance(batches, Curriculum) or run.state.stage == batches.n_stages - 1


def _be_patient(run: Run) -> None:
    state, config = run.state, run.config
    state.stale += 1
    if config.schedule == "plateau-halving" and state.stale % config.halve_after == 0:
        state.halvings += 1


# The end of a training, and its results.


def why_over(run: Run) -> str | None:
    """The reason to end here, or None."""
    state, config = run.state, run.config
    if state.is_done:
        return "the scores are what was wanted"
    if config.patience and state.stale >= config.patience:
        return f"no better score in {config.patience} validations"
    if config.steps and state.step >= config.steps:
        return f"{config.steps} steps"
    if config.epochs and state.epoch >= config.epochs:
        return f"{config.epochs} epochs"
    if run.wishes.end:
        return f"{config.minutes:g} minutes"
    return None if run.optimiser else "nothing to train"


def finish(run: Run, reason: str) -> dict[str, Any]:
    """Load the best weights into the model, and write metrics and loss curve."""
    state, first = run.state, run.processes.is_first
    if state.validated != state.step:
        validate(run)
    run.save()
    if not state.best:
        raise run.diverged()
    is_averaged = first and run.config.average_last > 1 and _average(run)
    run.processes.wait()  # the best weights are written
    weights, about = run.folder.read_best()
    load_weights(run.job.model, weights, source=run.folder.best)
    run.job.model.eval()
    metrics = {
        "score": run.job.score,
        "validation": about["scores"],
        "best_step": about["step"],
        "is_averaged": is_averaged,
        "steps": state.step,
        "epochs": state.epoch,
        "units": state.units,
        "minutes": round(state.seconds / 60, 2),
        "ended": reason,
    }
    if first:
        run.draw()
        run.folder.write_metrics(metrics)
    run.processes.wait()
    return metrics


def _average(run: Run) -> bool:
    """Evaluate the mean of the last weights; returns whether it is the best."""
    weights = average_recent(run.folder.recent)
    last = {name: value.clone() for name, value in run.job.model.state_dict().items()}
    load_weights(run.job.model, weights, source=run.folder.recent)
    scores = scores_of(run)
    run.job.model.load_state_dict(last)
    # Not the best on disk: that may be this mean, written by a process that was killed after this.
    if is_better := run.job.beats(scores[run.job.score], run.state.best[run.job.score]):
        run.folder.write_best(
            weights, {"step": run.state.step, "scores": scores, "mean_of": run.config.average_last}
        )
    return is_better


class Trained(NamedTuple):
    """A finished training."""

    model: nn.Module
    """With the weights that validated best, in eval mode."""
    metrics: dict[str, Any]
    """The content of ``metrics.json``: the best scores, steps, minutes, why it ended."""
    folder: Path


def train(
    job: Job,
    folder: str | Path,
    *,
    about: Mapping[str, Any] = NOTHING,
    resume: bool = False,
    progress: Progress | None = None,
) -> Trained:
    """Train a system; at the end the model has the best weights by validation.

    Ctrl-C saves and stops; a killed process loses at most ``checkpoint_minutes``. Started by
    ``torchrun``, the processes share each batch; the folder must then be on a disk that all see.

    Args:
        folder: the run folder; it must be new, unless it is resumed.
        about: additional entries of the manifest; ``settings`` and ``recipe`` must be the same on
            resume.
        resume: resume from the folder's checkpoint, or start if there is none.
        progress: called with the stage, the steps done, the total, and a short status.

    >>> import tempfile
    >>> from saccade.zoo.training.job import LossOut
    >>> from saccade.zoo.training.settings import TrainConfig
    >>> def loss(model, x):
    ...     return LossOut((model(x) - 3 * x).square().mean(), n=len(x))
    >>> job = Job(
    ...     model=nn.Linear(1, 1),
    ...     batches=lambda epoch: [torch.linspace(-1, 1, 8)[:, None]] * 50,
    ...     loss=loss,
    ...     validate=lambda model: {"error": abs(model.weight.item() - 3)},
    ...     score="error",
    ...     is_better="less",
    ...     config=TrainConfig(epochs=4, learning_rate=0.1),
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trained = train(job, f"{folder}/run")
    >>> trained.metrics["steps"], round(trained.model.weight.item(), 2)
    (200, 3.0)
    """
    on_gpu = device_of(job.config.device).type == "cuda"
    with joined(has_own_gpu=on_gpu) as processes, noticing_interrupts() as is_interrupted:
        run = begin_run(
            job,
            Path(folder),
            about=about,
            resume=resume,
            processes=processes,
            is_interrupted=is_interrupted,
            progress=progress,
        )
        job.model.train()
        while (reason := why_over(run)) is None:
            _epoch(run)
        return Trained(job.model, finish(run, reason), run.folder.path)


def _epoch(run: Run) -> None:
    """The remaining batches of an epoch, and the validation at its end."""
    state, config = run.state, run.config
    for batch in _batches(run):
        _step(run, batch)
        if state.step % config.log_steps == 0:
            _log(run)
        if config.validate_steps and state.step % config.validate_steps == 0 and validate(run):
            break  # the next stage of the curriculum begins, with an epoch of its own
        if run.wishes.save or run.wishes.stop:
            run.save()
        if run.wishes.stop:
            raise KeyboardInterrupt
        if why_over(run):
            return
    state.epoch, state.batch = state.epoch + 1, 0
    if not config.validate_steps:
        validate(run)


def _batches(run: Run) -> Iterator[Any]:
    state = run.state
    batches = run.job.batches_of(state.epoch, state.stage)
    if not state.epoch_length and isinstance(batches, Sized):
        state.epoch_length = len(batches)
    check_schedule(run.config, _total(run))
    yield from islice(batches, state.batch, None)
    if state.batch == 0:
        raise TrainingError(
            f"there is no batch in epoch {state.epoch}", hint="is the data empty, or too short?"
        )
    state.epoch_length = state.epoch_length or state.batch


def _step(run: Run, batch: Any) -> None:
    """One step of the optimiser along the gradient of the mean loss over the whole batch."""
    state, optimiser = run.state, run.optimiser
    assert optimiser is not None, "there is nothing to train"
    state.step, state.batch = state.step + 1, state.batch + 1
    if run.job.before_step:
        run.job.before_step(run.job.model, state.step)
    share = share_of(batch, run.processes)
    is_rounded = run.config.precision == "bfloat16"
    with torch.autocast(run.device.type, dtype=torch.bfloat16, enabled=is_rounded):
        out = run.loss(moved(share.batch, run.device))
    n = 0 if share.is_idle else out.n
    total = _agree(run, n)
    # Gradients are averaged over processes; this gives the gradient of the mean over all units.
    # In one process the factor is 1.
    loss = out.loss * (n * run.processes.world / total)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = _clip(optimiser, run.config.clip)
    rate = rate_at(state.step, run.config, total=_total(run), halvings=state.halvings)
    set_rate(optimiser, rate)
    optimiser.step()
    state.units += total
    run.window.add(out, norm, n=n)
    _show(run)


def _agree(run: Run, n: int) -> int:
    """The number of units of all processes; also whether any wants to end, to stop or to save."""
    seconds, config = run.clock.seconds, run.config
    wishes = Wishes(
        end=bool(config.minutes) and seconds >= config.minutes * 60,
        stop=run.is_interrupted(),
        save=seconds - run.saved >= config.checkpoint_minutes * 60,
    )
    counts = torch.tensor([n, *wishes])
    run.processes.add_up([counts])
    total, *wanted = counts.tolist()
    run.wishes = Wishes(*map(bool, wanted))
    return max(1, total)


def _clip(optimiser: torch.optim.Optimizer, limit: float) -> Tensor:
    """Clip the gradient's norm (Pascanu et al., 2013, https://arxiv.org/abs/1211.5063)."""
    weights = [w for group in optimiser.param_groups for w in group["params"] if w.grad is not None]
    norm = get_total_norm([w.grad for w in weights])
    if limit:
        clip_grads_with_norm_(weights, limit, norm)
    return norm


def _log(run: Run) -> None:
    """Write a line with the means since the last one."""
    state = run.state
    means, n, _ = run.means()
    state.n_high = run.n_high
    seconds = run.clock.seconds
    rate = rate_at(state.step, run.config, total=_total(run), halvings=state.halvings)
    speed = n / max(1e-9, seconds - run.line_began)
    run.note = f"loss {means['loss']:.4g}"
    if run.processes.is_first:
        line = {"step": state.step, "epoch": state.epoch, **means, "rate": rate}
        run.log.write({**line, "seconds": round(seconds, 3), "units_per_second": round(speed, 1)})
    run.window.clear()
    run.line_began = seconds


MOST_STEPS = 1e15  # of a progress bar: an infinite time limit gives no integer


def _total(run: Run) -> int | None:
    """The total number of steps, if it does not depend on time."""
    by_epochs = run.config.epochs * run.state.epoch_length
    return min((n for n in (run.config.steps, by_epochs) if n), default=None)


def _show(run: Run) -> None:
    if run.progress and run.processes.is_first:
        seconds, step = run.clock.seconds, run.state.step
        by_time = round(min(MOST_STEPS, step * run.config.minutes * 60 / max(seconds, 1e-9)))
        total = min((n for n in (_total(run), by_time) if n), default=None)
        if total:
            run.progress("training", step, max(step, total), run.note)
