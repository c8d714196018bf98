"""Differentiable RAM on cluttered MNIST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.recipes.recipe import Recipe
from saccade.training.config import TrainConfig

if TYPE_CHECKING:
    from saccade.models.diff_ram import DifferentiableRam
    from saccade.recipes.opened import OpenRun
    from saccade.trace import ImageTrace
    from saccade.training import Job

TRAINING = TrainConfig(
    epochs=90, minutes=58.0, learning_rate=0.001, clip=1.0, schedule="cosine", warmup=500
)


@dataclass(frozen=True, kw_only=True)
class DiffRamSettings:
    """How often it looks, and at what."""

    size: int = 100
    """Pixels of a scene's side."""
    n_clutter: int = 8
    """Pieces of other digits in it."""
    n_glimpses: int = 8
    """Looks before the answer."""
    patch: int = 12
    """Filters on a side of the grid it looks through."""
    d_hidden: int = 256
    """Numbers in its state."""
    n_taught: int = 4
    """The answers after the last so many glimpses are taught; the paper's: 1."""
    batch: int = 128
    """Scenes in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def build(settings: DiffRamSettings, data: Path | None) -> Job:
    """The job on the digits in ``data``."""
    from saccade.recipes.spotting import diff_ram_job

    return diff_ram_job(settings, data)


def restore(settings: DiffRamSettings, kept: Mapping[str, Any]) -> DifferentiableRam:
    """The untrained model."""
    del kept
    from saccade.recipes.spotting import diff_ram_model

    return diff_ram_model(settings)


def evaluate(run: OpenRun, data: Path | None) -> Mapping[str, float]:
    """Per cent of the scenes with test digits named wrong."""
    from saccade.recipes.spotting import evaluate_spotting

    return evaluate_spotting(run, data)


def trace(run: OpenRun, text: str) -> Sequence[ImageTrace]:
    """Where it looks in the scene with the test digit of this number."""
    from saccade.recipes.spotting import trace_spotting

    return [trace_spotting(run, text)]


RECIPES = (
    Recipe(
        name="diffram-cluttered100",
        about="DRAW's reader finds a digit among clutter in 8 looks, and names it.",
        system="diff_ram",
        task="scenes",
        metric="error",
        is_better="less",
        at_least=5.0,
        published=3.36,
        source="https://arxiv.org/abs/1502.04623, table 1",
        note="An hour on two cores; scenes are made anew for every epoch.",
        minutes=58.0,
        settings=DiffRamSettings(),
        build=build,
        restore=restore,
        evaluate=evaluate,
        trace=trace,
        gallery=("0", "1"),
    ),
)
