"""Recipes `dram-*`: two digits on a canvas are found and named one by one, or added.

Ba et al., 2015 (https://arxiv.org/abs/1412.7755), section 5.1, tables 1 and 2.
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

PAPER = "https://arxiv.org/abs/1412.7755"
TRAINING = TrainConfig(
    steps=24_000,
    minutes=58.0,
    learning_rate=2e-3,
    schedule="cosine",
    warmup=500,
    clip=1.0,
    validate_steps=2000,
    precision="bfloat16",
)
# A sum says little of either digit. By Adam (`--set training.optimiser=adam`) nothing is learnt
# from it in 5,500 steps; by Muon errors begin to fall after 2,500.
BY_MUON = replace(TRAINING, optimiser="muon")


@dataclass(frozen=True, kw_only=True)
class DramSettings:
    """What is shown and asked, and how it is looked at."""

    asks: Literal["digits", "sum"] = "digits"
    """Both digits from left to right, then "no more"; or their sum."""
    is_backward: bool = False
    """Read from right to left; a run of each kind makes a pair of readers."""
    size: Side = 100
    """Pixels of the image's side; a digit has 28."""
    n_clutter: FewOrNone = 8
    """Pieces of other digits in each image, 8 x 8 pixels each."""
    patch: Side = 14
    """Pixels of a glimpse's side."""
    n_scales: Few = 3
    """Patches of a glimpse, each twice as wide as the one before."""
    n_glimpses: Few = 3
    """Looks before each answer."""
    reach: Share = 0.8
    """How far from the centre it may look; 1 is the edge of the image."""
    first_std: NonNegative = 0.2
    """Spread of drawn places around the chosen one at first, in half image sides."""
    last_std: NonNegative = 0.05
    """The same at the end of training; it falls steadily."""
    n_samples: Few = 1
    """Passes over each image from which the bound is estimated."""
    early_weight: NonNegative = 0.5
    """How much answers before the last for a digit count beside it; the paper's: 0."""
    discount: Share = 0.5
    """What a glimpse is paid of what the next ones add; the paper's: 1, all of it."""
    reinforce_weight: NonNegative = 0.1
    """How much the policy's loss counts beside that of the answers."""
    policy_rate: Share = 0.1
    """The emission network's share of the learning rate."""
    d_hidden: Width = 192
    """Units of a layer."""
    batch: Batch = 128
    """Images in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def _recipe(
    name: str,
    settings: DramSettings,
    *,
    about: str,
    published: float,
    at_most: float | None,
    source: str,
    minutes: float,
) -> Recipe:
    return Recipe(
        name=name,
        about=about,
        system="dram",
        task="scenes",
        metric="error",
        is_better="less",
        at_least=at_most,
        beside={"error_averaged": None},
        published=published,
        source=f"{PAPER}, {source}",
        note="The paper does not say what its noise is: ours are 8 pieces of other digits.",
        minutes=minutes,
        settings=settings,
        build=Later("reading_digits.dram_job"),
        restore=Later("reading_digits.dram_model", takes=1),
        evaluate=Later("reading_digits.evaluate_dram"),
        trace=Later("reading_digits.trace_dram"),
        gallery=("0", "1"),
        may_differ=frozenset({"is_backward"}),
    )


PAIRS = DramSettings()
RECIPES = (
    _recipe(
        "dram-pairs",
        PAIRS,
        about="Finds two digits among pieces of others and names both, from left to right.",
        published=5.0,
        at_most=8.0,
        source="table 1",
        minutes=40.0,
    ),
    _recipe(
        "dram-addition",
        replace(PAIRS, asks="sum", n_glimpses=6, training=BY_MUON),
        about="Finds two digits among pieces of others and says their sum.",
        published=2.5,
        at_most=None,
        source="table 2",
        minutes=52.0,
    ),
)
