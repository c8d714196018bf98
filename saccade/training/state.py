"""Where a training is: all that the loop counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from annotated_types import Ge, Le

from saccade.errors import StoreError
from saccade.store import conform

MOST = 10**15
Count = Annotated[int, Ge(0), Le(MOST)]


@dataclass
class TrainState:
    """The numbers that a checkpoint has to hold beside the tensors."""

    step: Count = 0
    epoch: Count = 0
    """How many epochs are complete."""
    batch: Count = 0
    """How many batches of this epoch are done."""
    epoch_length: Count = 0
    """How many batches the first epoch has; 0 while that is not known."""
    stage: Count = 0
    """Of the curriculum."""
    seconds: Annotated[float, Ge(0)] = 0.0
    """Spent so far, in all the processes that this run has lived in."""
    units: Count = 0
    """Tokens, images, ... learnt from so far."""
    best: dict[str, float] = field(default_factory=dict)
    """The scores of the best validation."""
    best_step: Count = 0
    stale: Count = 0
    """Validations since the best one."""
    halvings: Count = 0
    stage_scores: list[dict[str, float]] = field(default_factory=list)
    """All validations of this stage of the curriculum."""
    validated: Annotated[int, Ge(-1), Le(MOST)] = -1
    """The step of the latest validation."""
    first_loss: float | None = None
    """Of the first step: what an untrained model gives."""
    n_high: Count = 0
    """Steps in a row whose loss was far above the first, up to the last line of the log."""
    high_loss: float = 0.0
    """The latest of these."""
    is_done: bool = False
    """The scores are all that was wanted."""

    def to_json(self) -> dict[str, Any]:
        """As it goes into the checkpoint."""
        scores = [written_scores(each) for each in self.stage_scores]
        return {**asdict(self), "best": written_scores(self.best), "stage_scores": scores}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], *, where: object) -> TrainState:
        """What `to_json` gave, checked; earlier versions did not count losses that are high."""
        names = {each.name for each in fields(cls)} - {"first_loss", "n_high", "high_loss"}
        if missing := sorted(names - stored.keys()):
            raise StoreError(
                f"{where} is damaged: the state has no {', '.join(missing)}",
                hint="copy the run again, or begin again in another folder",
            )
        held = dict(stored)
        held["best"] = read_scores(held.get("best", {}))
        scores = held.get("stage_scores", [])
        if isinstance(scores, list):
            held["stage_scores"] = [read_scores(each) for each in scores]
        return conform(cls, held, where=where)


def written_scores(scores: Mapping[str, float]) -> dict[str, float | str]:
    """Scores as JSON can hold them; those beside the watched one may be infinite or NaN.

    >>> written_scores({"nll": 0.5, "perplexity": float("inf")})
    {'nll': 0.5, 'perplexity': 'inf'}
    """
    return {name: value if math.isfinite(value) else str(value) for name, value in scores.items()}


def read_scores(scores: Any) -> Any:
    """What `written_scores` was given; anything else stays as it is, to be refused later."""
    if not isinstance(scores, Mapping):
        return scores
    odd = {"nan", "inf", "-inf"}
    return {
        name: float(value) if isinstance(value, str) and value in odd else value
        for name, value in scores.items()
    }
