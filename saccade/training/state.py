"""Where a training is: all that the loop counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class TrainState:
    """The numbers that a checkpoint has to hold beside the tensors."""

    step: int = 0
    epoch: int = 0
    """How many epochs are complete."""
    batch: int = 0
    """How many batches of this epoch are done."""
    epoch_length: int = 0
    """How many batches the first epoch has; 0 while that is not known."""
    stage: int = 0
    """Of the curriculum."""
    seconds: float = 0.0
    """Spent so far, in all the processes that this run has lived in."""
    units: int = 0
    """Tokens, images, ... learnt from so far."""
    best: dict[str, float] = field(default_factory=dict)
    """The scores of the best validation."""
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    halvings: int = 0
    stage_scores: list[dict[str, float]] = field(default_factory=list)
    """All validations of this stage of the curriculum."""
    validated: int = -1
    """The step of the latest validation."""
    is_done: bool = False
    """The scores are all that was wanted."""

    def to_json(self) -> dict[str, Any]:
        """As it goes into the checkpoint."""
        return asdict(self)
