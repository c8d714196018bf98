"""Recipes `ram-*`: digits found and named by a few glimpses, and what chance glimpses would do.

Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), tables 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

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

PAPER = "https://arxiv.org/abs/1406.6247"
# The rate falls to zero, so the end counts: see `steps` of each recipe.
TRAINING = TrainConfig(
    minutes=58.0,
    learning_rate=1e-3,
    schedule="cosine",
    warmup=500,
    clip=1.0,
    validate_steps=2000,
)


@dataclass(frozen=True, kw_only=True)
class RamSettings:
    """What is shown, and how it is looked at."""

    size: Side = 28
    """Pixels of the image's side; a digit has 28."""
    n_clutter: FewOrNone = 0
    """Pieces of other digits in each image, 8 x 8 pixels each."""
    wander: FewOrNone = 0
    """While it learns, digits are moved by up to so many pixels."""
    patch: Side = 8
    """Pixels of a glimpse's side."""
    n_scales: Few = 1
    """Patches of a glimpse, each twice as wide as the one before."""
    n_glimpses: Few = 6
    """Looks at an image before it is named."""
    policy: Literal["learnt", "random", "central"] = "learnt"
    """Where to look: learnt; at random; or once, at the centre."""
    reach: Share = 0.8
    """How far from the centre it may look; 1 is the edge of the image."""
    first_std: NonNegative = 0.2
    """Spread of drawn places around the chosen one at first, in half image sides."""
    last_std: NonNegative = 0.05
    """The same at the end of training; it falls steadily."""
    n_samples: Few = 1
    """Passes over each image from which the policy gradient is estimated."""
    early_weight: NonNegative = 0.5
    """How much the answers before the last count beside it; 0: reward at the end, as published."""
    discount: Share = 0.5
    """What a glimpse is paid of what the next ones add; 1: all. Not used with reward at the end."""
    reinforce_weight: NonNegative = 0.1
    """How much the policy's loss counts beside that of the answer."""
    policy_rate: Share = 0.1
    """The location network's share of the learning rate."""
    d_glimpse: Width = 128
    """Units for what a glimpse shows, and for where it was."""
    d_hidden: Width = 256
    """Units of the core."""
    batch: Batch = 256
    """Images in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def _recipe(
    name: str,
    settings: RamSettings,
    *,
    about: str,
    published: float | None,
    at_most: float | None,
    minutes: float,
    table: str,
    note: str = "",
) -> Recipe:
    return Recipe(
        name=name,
        about=about,
        system="ram",
        task="scenes",
        metric="error",
        is_better="less",
        at_least=at_most,
        beside={} if settings.policy == "central" else {"error_averaged": None},
        published=published,
        source=f"{PAPER}, {table}",
        note=note,
        minutes=minutes,
        settings=settings,
        build=Later("glimpsing.ram_job"),
        restore=Later("glimpsing.ram_model", takes=1),
        evaluate=Later("glimpsing.evaluate_ram"),
        trace=Later("glimpsing.trace_ram"),
        gallery=("0", "1"),
    )


MNIST = RamSettings(wander=1, training=replace(TRAINING, steps=24_000))
TRANSLATED60 = RamSettings(
    size=60, patch=12, n_scales=3, n_glimpses=8, training=replace(TRAINING, steps=16_000)
)
CLUTTERED60 = replace(TRANSLATED60, n_clutter=4, training=replace(TRAINING, steps=20_000))
CLUTTERED100 = replace(CLUTTERED60, size=100, n_clutter=8, n_scales=4)
TAUGHT = "Answers before the last are taught and rewarded, too; the paper's reward is at the end."
ANEW = f"Scenes are made anew for every epoch. {TAUGHT}"
RECIPES = (
    _recipe(
        "ram-mnist",
        MNIST,
        about="Names a digit from 6 glimpses of 8 x 8 pixels.",
        published=1.12,
        at_most=1.3,
        minutes=10.0,
        table="table 1a",
        note=f"Digits are moved by a pixel while it learns; the paper's are not. {TAUGHT}",
    ),
    _recipe(
        "ram-mnist-central",
        replace(MNIST, policy="central", training=replace(TRAINING, steps=20_000)),
        about="The control: one glimpse of 8 x 8 pixels, always at the centre.",
        published=None,
        at_most=None,
        minutes=5.0,
        table="table 1a has no such row",
        note="It is meant to fail: it shows what the path of the gaze is worth.",
    ),
    _recipe(
        "ram-translated60",
        TRANSLATED60,
        about="Finds a digit on 60 x 60 pixels and names it, in 8 glimpses at 3 scales.",
        published=1.2,
        at_most=1.8,
        minutes=14.0,
        table="table 1b",
        note=ANEW,
    ),
    _recipe(
        "ram-cluttered60",
        CLUTTERED60,
        about="Finds a digit among pieces of others on 60 x 60 pixels, in 8 glimpses.",
        published=4.04,
        at_most=5.5,
        minutes=16.0,
        table="table 2a",
        note=ANEW,
    ),
    _recipe(
        "ram-cluttered60-random",
        replace(CLUTTERED60, policy="random"),
        about="The control: 8 glimpses anywhere in the image.",
        published=14.4,
        at_most=None,
        minutes=16.0,
        table="table 2a",
        note="It is meant to be 8 points worse than ram-cluttered60, or more.",
    ),
    _recipe(
        "ram-cluttered100",
        CLUTTERED100,
        about="Finds a digit among pieces of others on 100 x 100 pixels, in 8 glimpses.",
        published=8.11,
        at_most=11.0,
        minutes=20.0,
        table="table 2b",
        note=ANEW,
    ),
)
