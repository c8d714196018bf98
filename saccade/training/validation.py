"""Validation: scores on held-out data, and what follows from them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from saccade.errors import TrainingError
from saccade.training.averaging import keep_recent
from saccade.training.curriculum import Curriculum
from saccade.training.randomness import own_randomness
from saccade.training.run import Run

# Drawing takes about half a second.
DRAW_SECONDS = 30.0


class Found(NamedTuple):
    """What a validation says, the same in every process."""

    scores: dict[str, float]
    """All of them in the first process, in the others only the one to watch."""
    is_done: bool
    is_passed: bool
    """This stage of the curriculum is done, and there is another."""


def validate(run: Run) -> bool:
    """Score the model, keep it if it is the best, log it; whether the next stage begins."""
    run.means()  # refuses to score what is broken
    began = run.clock.seconds
    found = _shared(run)
    state, score = run.state, found.scores[run.job.score]
    state.validated, state.is_done = state.step, found.is_done
    # Weights whose loss is far above that of the first step are no result, whatever they score.
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
    run.line_began += run.clock.seconds - began  # units a second are those of training alone
    return found.is_passed


def scores_of(run: Run) -> dict[str, float]:
    """The scores of the model as it is; drawing at random here changes nothing in the training."""
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
    """The first process validates; the others wait and are told."""
    told = torch.zeros(3, dtype=torch.float64)
    scores: dict[str, float] = {}
    if run.processes.is_first:
        scores = scores_of(run)
        run.state.stage_scores.append(scores)
        is_done = run.job.is_done is not None and run.job.is_done(scores)
        told[:] = torch.tensor([scores[run.job.score], is_done, _is_passed(run)])
    run.processes.from_first([told])
    score, is_done, is_passed = told.tolist()
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
