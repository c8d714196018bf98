"""Why a training ends, and what it leaves."""

from __future__ import annotations

from typing import Any

from saccade.training.averaging import average_recent
from saccade.training.checkpoint import load_weights
from saccade.training.run import Run
from saccade.training.validation import scores_of, validate


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
    """Leave the best weights in the model, and the figures and the picture in the folder."""
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
    figures = {
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
        run.folder.write_figures(figures)
    run.processes.wait()
    return figures


def _average(run: Run) -> bool:
    """Try the mean of the last weights; whether it is the best now."""
    weights = average_recent(run.folder.recent)
    last = {name: value.clone() for name, value in run.job.model.state_dict().items()}
    load_weights(run.job.model, weights, source=run.folder.recent)
    scores = scores_of(run)
    run.job.model.load_state_dict(last)
    # Not the best on disk: that may be this very mean, kept by a process killed after this line.
    if is_better := run.job.beats(scores[run.job.score], run.state.best[run.job.score]):
        run.folder.write_best(
            weights, {"step": run.state.step, "scores": scores, "mean_of": run.config.average_last}
        )
    return is_better
