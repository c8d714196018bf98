"""EDRAM on cluttered MNIST."""

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
    Widths,
)

TRAINING = TrainConfig(
    epochs=12, minutes=58.0, learning_rate=0.002, clip=1.0, schedule="cosine", warmup=300
)


@dataclass(frozen=True, kw_only=True)
class EdramSettings:
    """How often it looks, and what it is told."""

    size: Side = 100
    """Pixels of a scene's side."""
    n_clutter: FewOrNone = 8
    """Pieces of other digits in it."""
    n_glimpses: Few = 6
    """Looks before the answer."""
    side: Side = 26
    """Pixels of a glimpse's side."""
    channels: Widths = (24, 48)
    """Of the convolutions over a glimpse."""
    d_hidden: Width = 192
    """Numbers in each of the two states."""
    place_weight: NonNegative = 10.0
    """How much a glimpse beside the digit counts: at 10, five pixels aside cost 0.1 nats."""
    sampler_gradient: Share = 0.05
    """How much of the answer's gradient goes through the sampler to the windows; the paper's: 1."""
    batch: Batch = 128
    """Scenes in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


RECIPES = (
    Recipe(
        name="edram-cluttered100",
        about="A spatial transformer in a loop: 6 glimpses that are told where the digit is.",
        system="edram",
        task="scenes",
        metric="error",
        is_better="less",
        at_least=2.0,
        published=0.6,
        source="https://arxiv.org/abs/1706.03581, table 1",
        note="Fewer channels and smaller states than the paper's 11 million weights, and little "
        "gradient through the sampler.",
        minutes=20.0,
        settings=EdramSettings(),
        build=Later("spotting.edram_job"),
        restore=Later("spotting.edram_model", takes=1),
        evaluate=Later("spotting.evaluate_spotting"),
        trace=Later("spotting.trace_spotting"),
        gallery=("0", "1"),
    ),
)
