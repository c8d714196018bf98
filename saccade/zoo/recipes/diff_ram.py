"""Differentiable RAM on cluttered MNIST."""

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

TRAINING = TrainConfig(
    epochs=52,
    minutes=58.0,
    learning_rate=0.001,
    clip=1.0,
    schedule="cosine",
    warmup=300,
    precision="bfloat16",
)


@dataclass(frozen=True, kw_only=True)
class DiffRamSettings:
    """How often it looks, and at what."""

    size: Side = 100
    """Pixels of a scene's side."""
    n_clutter: FewOrNone = 8
    """Pieces of other digits in it."""
    n_glimpses: Few = 8
    """Looks before the answer."""
    patch: Side = 12
    """Filters on a side of the grid it looks through."""
    d_hidden: Width = 256
    """Numbers in its state."""
    first_view: Share = 0.5
    """The part of the scene's side that a look spans at first. A digit has a quarter: of the whole,
    a patch this small shows little of its shape, and chance is left later."""
    restraint: NonNegative = 4.0
    """No scene's gradient through a place is longer than so many median ones; 0: all may be."""
    early_weight: NonNegative = 7.0
    """How much the mean of the answers before the last counts beside it: seven of them, each like
    it; the paper's: 0."""
    batch: Batch = 128
    """Scenes in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


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
        note="Scenes are made anew for every epoch, answers before the last are taught, too, and "
        "looks begin with half of the scene; the paper says nothing of these.",
        minutes=28.0,
        settings=DiffRamSettings(),
        build=Later("spotting.diff_ram_job"),
        restore=Later("spotting.diff_ram_model", takes=1),
        evaluate=Later("spotting.evaluate_spotting"),
        trace=Later("spotting.trace_spotting"),
        gallery=("0", "1"),
    ),
)
