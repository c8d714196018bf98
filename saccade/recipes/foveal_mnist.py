"""Recipe `foveal-mnist`: digits named from a few glimpses by a Boltzmann machine.

Larochelle and Hinton, 2010 (https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.recipes.recipe import Recipe
from saccade.training.config import TrainConfig

if TYPE_CHECKING:
    from saccade.models.foveal_rbm import FovealRbm
    from saccade.recipes.opened import OpenRun
    from saccade.trace import ImageTrace
    from saccade.training import Job

# The rate falls to zero, so the steps end a run; the minutes are there for a slow machine.
TRAINING = TrainConfig(
    steps=15_000,
    minutes=20.0,
    learning_rate=2e-3,
    schedule="cosine",
    warmup=200,
    clip=0.0,
    validate_steps=1000,
)


@dataclass(frozen=True, kw_only=True)
class FovealSettings:
    """What is seen, and what puts it together."""

    wander: int = 1
    """While it learns, digits are moved by up to so many pixels."""
    patch: int = 8
    """Pixels of a glimpse's side."""
    n_scales: int = 2
    """Patches of a glimpse, each twice as wide as the one before."""
    side: int = 7
    """It may look at so many times so many places."""
    n_glimpses: int = 6
    """Looks at an image before it is named."""
    d_factor: int = 256
    """Factors of the third-order weights."""
    d_hidden: int = 512
    """Hidden units."""
    explore: float = 0.5
    """While it learns, this part of the looks goes anywhere, whatever the controller says."""
    generative_weight: float = 0.01
    """How much modelling the glimpses counts beside naming them."""
    is_sequential: bool = True
    """Taught after every glimpse, not only after the last."""
    batch: int = 128
    """Images in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def build(settings: FovealSettings, data: Path | None) -> Job:
    """The job on the digits in ``data``."""
    from saccade.recipes.fixating import foveal_job

    return foveal_job(settings, data)


def restore(settings: FovealSettings, kept: Mapping[str, Any]) -> FovealRbm:
    """The untrained model."""
    del kept
    from saccade.recipes.fixating import foveal_model

    return foveal_model(settings)


def evaluate(run: OpenRun, data: Path | None) -> Mapping[str, float]:
    """Per cent of the test digits named wrong."""
    from saccade.recipes.fixating import evaluate_foveal

    return evaluate_foveal(run, data)


def trace(run: OpenRun, text: str) -> Sequence[ImageTrace]:
    """The path of the gaze over a test image, or an image file."""
    from saccade.recipes.fixating import trace_foveal

    return [trace_foveal(run, text)]


RECIPES = (
    Recipe(
        name="foveal-mnist",
        about="Names a digit from 6 glimpses, put together by a third-order Boltzmann machine.",
        system="foveal_rbm",
        task="scenes",
        metric="error",
        is_better="less",
        published=None,
        source="https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf",
        note="The paper's retina and its places are others, so its number is not beside ours. "
        "Digits are moved by a pixel while it learns.",
        minutes=20.0,
        settings=FovealSettings(),
        build=build,
        restore=restore,
        evaluate=evaluate,
        trace=trace,
        gallery=("0", "1"),
    ),
)
