"""How the learning rate goes up and down: a factor for every step, between 0 and 1."""

from __future__ import annotations

import math

from saccade.errors import TrainingError
from saccade.training.config import OPEN_ENDED, TrainConfig


def rate_at(step: int, config: TrainConfig, *, total: int | None, halvings: int = 0) -> float:
    """The learning rate of a step; the first is step 1.

    Every schedule begins with ``warmup`` steps of linear rise. Then:

    - constant: stays.
    - warmup-inverse-sqrt: falls as 1 / sqrt(step), Vaswani et al., 2017
      (https://arxiv.org/abs/1706.03762), section 5.3, equation 3. They tie the height to d_model;
      here it is ``learning_rate``, so that it means the same for every system.
    - linear, cosine: fall to zero at the last step; cosine is half a period (Loshchilov & Hutter,
      2017, https://arxiv.org/abs/1608.03983, equation 5, without restarts).
    - plateau-halving: halves when validation no longer improves, as Sutskever et al., 2014
      (https://arxiv.org/abs/1409.3215), section 3.4, did by the clock.

    Args:
        total: how many steps there will be; only linear and cosine need it.
        halvings: how often plateau-halving has halved.

    >>> config = TrainConfig(learning_rate=1.0, schedule="linear", warmup=2)
    >>> [rate_at(step, config, total=6) for step in range(1, 7)]
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    return config.learning_rate * _rise(step, config) * _fall(step, config, total, halvings)


def check_schedule(config: TrainConfig, total: int | None) -> None:
    """Refuse a schedule that falls towards an end which nobody knows."""
    if config.schedule not in OPEN_ENDED and total is None:
        raise TrainingError(
            f"the schedule {config.schedule} falls to zero at the last step, and which that is "
            "cannot be told from the number of epochs here",
            hint="--set steps=N says it",
        )


def _rise(step: int, config: TrainConfig) -> float:
    return min(1.0, step / config.warmup) if config.warmup else 1.0


def _fall(step: int, config: TrainConfig, total: int | None, halvings: int) -> float:
    match config.schedule:
        case "warmup-inverse-sqrt":
            return min(1.0, math.sqrt(config.warmup / step))
        case "plateau-halving":
            return 0.5**halvings
        case "linear":
            return 1.0 - _way(step, config, total)
        case "cosine":
            return 0.5 + 0.5 * math.cos(math.pi * _way(step, config, total))
        case _:
            return 1.0


def _way(step: int, config: TrainConfig, total: int | None) -> float:
    """How much of the way from the top to the end is behind."""
    assert total is not None, f"{config.schedule} needs to know where the end is"
    return min(1.0, max(0, step - config.warmup) / max(1, total - config.warmup))
