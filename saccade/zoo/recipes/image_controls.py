"""Recipes `fc-*` and `conv-*`: the same images, seen whole by a net without attention.

Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), tables 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, FewOrNone, Side, TrainConfig, Width

PAPER = "https://arxiv.org/abs/1406.6247"
TRAINING = TrainConfig(
    steps=40_000,
    minutes=15.0,
    learning_rate=1e-3,
    schedule="cosine",
    warmup=500,
    clip=1.0,
    validate_steps=2000,
)
# `conv-translated60`: 2.1 % wrong in 11 minutes; by Adam (`--set optimiser=adam --set
# learning_rate=0.001`) 2.9 in 4. To make the wide matrices of `fc-*` orthogonal would take
# most of the time.
BY_MUON = replace(TRAINING, optimiser="muon", learning_rate=5e-3)


@dataclass(frozen=True, kw_only=True)
class ControlSettings:
    """What is shown, and which net sees it."""

    net: Literal["fc", "conv"] = "fc"
    """Fully connected or convolutional, two layers either way."""
    d_hidden: Width = 256
    """Units of a layer."""
    size: Side = 28
    """Pixels of the image's side; a digit has 28."""
    n_clutter: FewOrNone = 0
    """Pieces of other digits in each image, 8 x 8 pixels each."""
    wander: FewOrNone = 0
    """While it learns, digits are moved by up to so many pixels."""
    batch: Batch = 128
    """Images in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def _recipe(
    settings: ControlSettings, *, on: str, published: float, table: str, minutes: float = 12.0
) -> Recipe:
    net = "fully connected" if settings.net == "fc" else "convolutional"
    return Recipe(
        name=f"{settings.net}-{on}",
        about=f"The control: a {net} net of two layers that sees the whole image.",
        system="plain_image_nets",
        task="scenes",
        metric="error",
        is_better="less",
        published=published,
        source=f"{PAPER}, {table}",
        note="What looking with glimpses is compared with; scenes are made anew for every epoch.",
        minutes=minutes,
        settings=settings,
        build=Later("glimpsing.control_job"),
        restore=Later("glimpsing.control_model", takes=1),
        evaluate=Later("glimpsing.evaluate_control"),
    )


RECIPES = (
    _recipe(
        ControlSettings(net="fc", wander=1),
        on="mnist",
        published=1.69,
        table="table 1a",
        minutes=5.0,
    ),
    _recipe(
        ControlSettings(net="conv", wander=1),
        on="mnist",
        published=1.21,
        table="table 1a",
        minutes=5.0,
    ),
    _recipe(
        ControlSettings(net="fc", size=60),
        on="translated60",
        published=2.63,
        table="table 1b",
        minutes=8.0,
    ),
    _recipe(
        ControlSettings(net="conv", size=60, training=BY_MUON),
        on="translated60",
        published=1.62,
        table="table 1b",
    ),
    _recipe(
        ControlSettings(net="fc", size=60, n_clutter=4),
        on="cluttered60",
        published=11.96,
        table="table 2a",
        minutes=8.0,
    ),
    _recipe(
        ControlSettings(net="conv", size=60, n_clutter=4, training=BY_MUON),
        on="cluttered60",
        published=8.09,
        table="table 2a",
    ),
)
