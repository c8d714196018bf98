"""What all recipes on spoken digits share: how digits are joined, who is held out, how many.

`saccade.zoo.recipes.hearing` does the work; this file is read without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import (
    Batch,
    BelowOne,
    Many,
    NonNegative,
    Positives,
    TrainConfig,
    Width,
)

if TYPE_CHECKING:
    from torch import nn

    from saccade.zoo.training.job import Job

TRAINING = TrainConfig(
    steps=4000,
    minutes=50.0,
    learning_rate=2e-3,
    clip=1.0,
    schedule="cosine",
    warmup=200,
    validate_steps=250,
)


@dataclass(frozen=True, kw_only=True)
class DigitSettings:
    """Sequences of digits out of single recordings; a recipe's own settings inherit from it."""

    speaker: str = ""
    """Held out for the test, with all recordings; empty: the official test recordings of all."""
    shortest: Many = 3
    """Digits in a sequence, at least."""
    longest: Many = 7
    """Digits in a sequence, at most."""
    pause: NonNegative = 0.25
    """Seconds of silence around digits, at most."""
    speeds: Positives = (0.9, 1.0, 1.1)
    """In training, sequences are played at one of these speeds, which changes their pitch, too."""
    quietest: float = 40.0
    """Noise is so many decibels below the voice in the test, and at most so quiet in training."""
    loudest: float = 15.0
    """In training, noise is at least so many decibels below the voice."""
    d_hidden: Width = 96
    """Units of each LSTM, in each direction."""
    dropout: BelowOne = 0.2
    """Between layers and before the output."""
    batch: Batch = 32
    """Sequences in a batch."""
    n_valid: Many = 400
    """Sequences to choose the best weights by."""
    n_test: Many = 2000
    """Sequences to report on."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def digit_recipe(  # noqa: PLR0913  these are a recipe's own fields
    name: str,
    settings: DigitSettings,
    *,
    system: str,
    build: Callable[[Any, Path | None], Job],
    restore: Callable[[Any, Mapping[str, Any]], nn.Module],
    about: str,
    source: str = "",
    note: str = "",
    at_least: float | None = None,
) -> Recipe:
    """A recipe whose figure is the per cent of digits that are wrong."""
    return Recipe(
        name=name,
        about=about,
        system=system,
        task="joined_digits",
        metric="error",
        is_better="less",
        at_least=at_least,
        beside={"error_by_beam": None},
        source=source,
        note=note,
        minutes=15.0,
        settings=settings,
        build=build,
        restore=restore,
        evaluate=Later("hearing.evaluate_digits"),
        trace=Later("hearing.trace_digits"),
        translate=Later("hearing.write_down"),
        gallery=("31415", "77007"),
    )
