"""What can be set about a training. Apart from the loop, so that `--help` needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from saccade.errors import UsageError
from saccade.training.ranges import (
    BelowOne,
    FewOrNone,
    Many,
    ManyOrNone,
    NonNegative,
    Positive,
    Seed,
    problems_in,
)

Optimiser = Literal["adam", "adamw", "sgd", "rmsprop", "muon"]
Schedule = Literal["constant", "warmup-inverse-sqrt", "linear", "cosine", "plateau-halving"]
Precision = Literal["float32", "bfloat16"]

# These say how long and where, not how: a run may be taken up again with others.
FREE = frozenset({"minutes", "checkpoint_minutes", "device"})
# Schedules whose rates do not depend on when the end comes, so that it may be put off, too.
OPEN_ENDED = frozenset({"constant", "warmup-inverse-sqrt", "plateau-halving"})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a system is trained. It ends at whichever of epochs, steps and minutes comes first.

    With none of the three nothing is trained: right for a system that is made by counting.
    """

    epochs: ManyOrNone = 0
    """How many times through the data; 0: no limit."""
    steps: ManyOrNone = 0
    """How many optimiser steps; 0: no limit."""
    minutes: NonNegative = 0.0
    """How long, validation included; 0: no limit."""
    optimiser: Optimiser = "adam"
    """adam, adamw, sgd, rmsprop, or muon on matrices with adam on the rest."""
    learning_rate: Positive = 1e-3
    """The highest rate of the schedule."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """How slowly adam's two averages follow the gradient and its square."""
    momentum: BelowOne = 0.0
    """Of sgd and rmsprop; muon's is 0.95."""
    weight_decay: NonNegative = 0.0
    """Pulls matrices (not biases) towards zero; with adamw and muon apart from the gradient."""
    clip: NonNegative = 1.0
    """The gradient's norm is cut to this; 0: never."""
    schedule: Schedule = "constant"
    """constant, warmup-inverse-sqrt, linear and cosine (both to zero), or plateau-halving."""
    warmup: ManyOrNone = 0
    """Over how many steps the rate rises from zero."""
    halve_after: Many = 1
    """plateau-halving: halve the rate after so many validations without a better score."""
    validate_steps: ManyOrNone = 0
    """Validate after so many steps; 0: after every epoch."""
    patience: ManyOrNone = 0
    """End after so many validations without a better score; 0: never."""
    precision: Precision = "float32"
    """bfloat16: matrix products of a step are rounded to 8 bits; weights and sums are not."""
    average_last: FewOrNone = 0
    """Average the weights of the last so many validations, and keep that if it is better."""
    log_steps: Many = 50
    """A line in the log for every so many steps."""
    checkpoint_minutes: NonNegative = 5.0
    """A killed run loses at most this much."""
    seed: Seed = 0
    """Of everything that is drawn at random."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""

    def __post_init__(self) -> None:
        wrong = _problems(self)
        if wrong:
            raise UsageError(
                f"{len(wrong)} problem{'s' * (len(wrong) > 1)} in the training's settings: "
                + "; ".join(wrong),
                hint="`saccade recipes NAME` shows what can be set",
            )

    def may_change(self) -> frozenset[str]:
        """Fields in which a run that is taken up again may differ from what it began with."""
        return FREE | ({"epochs", "steps"} if self.schedule in OPEN_ENDED else frozenset())


def _problems(config: TrainConfig) -> list[str]:
    wrong = problems_in(config)
    if config.schedule == "warmup-inverse-sqrt" and config.warmup == 0:
        wrong.append("warmup: the schedule warmup-inverse-sqrt needs 1 or more, got 0")
    return wrong
