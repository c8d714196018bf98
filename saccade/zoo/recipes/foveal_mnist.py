"""Recipe `foveal-mnist`: digits named from a few glimpses by a Boltzmann machine.

Larochelle and Hinton, 2010 (https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf).
"""

from __future__ import annotations

from dataclasses import dataclass

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import (
    Batch,
    Few,
    FewOrNone,
    NonNegative,
    Share,
    Side,
    TrainConfig,
    Width,
)

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

    wander: FewOrNone = 1
    """While it learns, digits are moved by up to so many pixels."""
    patch: Side = 8
    """Pixels of a glimpse's side."""
    n_scales: Few = 2
    """Patches of a glimpse, each twice as wide as the one before."""
    side: Side = 7
    """It may look at so many times so many places."""
    n_glimpses: Few = 6
    """Looks at an image before it is named."""
    d_factor: Width = 256
    """Factors of the third-order weights."""
    d_hidden: Width = 512
    """Hidden units."""
    explore: Share = 0.5
    """While it learns, this part of the looks goes anywhere, whatever the controller says."""
    generative_weight: NonNegative = 0.01
    """How much modelling the glimpses counts beside naming them."""
    is_sequential: bool = True
    """Taught after every glimpse, not only after the last."""
    batch: Batch = 128
    """Images in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


RECIPES = (
    Recipe(
        name="foveal-mnist",
        about="Names a digit from 6 glimpses, put together by a third-order Boltzmann machine.",
        system="foveal_rbm",
        task="scenes",
        metric="error",
        is_better="less",
        beside={"error_random": None},
        published=None,
        source="https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf",
        note="The paper's retina and its places are others, so its number is not beside ours. "
        "Digits are moved by a pixel while it learns.",
        minutes=20.0,
        settings=FovealSettings(),
        build=Later("fixating.foveal_job"),
        restore=Later("fixating.foveal_model", takes=1),
        evaluate=Later("fixating.evaluate_foveal"),
        trace=Later("fixating.trace_foveal"),
        gallery=("0", "1"),
    ),
)
