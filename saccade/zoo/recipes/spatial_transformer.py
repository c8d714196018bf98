"""A spatial transformer network on cluttered MNIST."""

from __future__ import annotations

from dataclasses import dataclass, replace

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, FewOrNone, Share, Side, TrainConfig, Width, Widths

TRAINING = TrainConfig(
    epochs=40, minutes=50.0, learning_rate=0.001, clip=5.0, schedule="cosine", warmup=200
)


@dataclass(frozen=True, kw_only=True)
class StnSettings:
    """How large the window is, and what names it."""

    size: Side = 60
    """Pixels of a scene's side."""
    n_clutter: FewOrNone = 4
    """Pieces of other digits in it."""
    side: Side = 28
    """Pixels of the window's side."""
    channels: Widths = (32, 64)
    """Of the convolutions over the window."""
    d_hidden: Width = 128
    """Units between them and the answer."""
    is_multi: bool = False
    """A transformer before every convolution, not only before the first."""
    slower: Share = 0.3
    """Localisation networks learn at this part of the rate."""
    batch: Batch = 128
    """Scenes in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


SINGLE = Recipe(
    name="stn-cluttered60",
    about="A network finds a digit among clutter, moves a window there and names it.",
    system="spatial_transformer_net",
    task="scenes",
    metric="error",
    is_better="less",
    at_least=3.0,
    published=None,
    source="https://arxiv.org/abs/1506.02025, section 4.1",
    note="The paper has 1.7 on other clutter: 16 pieces of 6 x 6.",
    minutes=15.0,
    settings=StnSettings(),
    build=Later("spotting.stn_job"),
    restore=Later("spotting.stn_model", takes=1),
    evaluate=Later("spotting.evaluate_spotting"),
    trace=Later("spotting.trace_spotting"),
    gallery=("0", "1", "2"),
)
RECIPES = (
    SINGLE,
    replace(
        SINGLE,
        name="stn-multi-cluttered60",
        about="The same with another transformer before the second convolution.",
        at_least=None,
        settings=StnSettings(is_multi=True),
    ),
)
