"""The recipe `hard-attention`: words are written down while they are drawled.

Luo et al., 2016 (https://arxiv.org/abs/1608.01281) write down speech. Here the speech is letters
that are held for some frames, and the words of the test were never heard in training: see
`saccade.zoo.tasks.stretched_text`. With ``reward_weight=0`` the coin is never taught when to
speak: the control.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Few, Many, NonNegative, Share, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn


TRAINING = TrainConfig(
    steps=3000,
    minutes=15.0,
    learning_rate=3e-3,
    clip=1.0,
    schedule="cosine",
    warmup=100,
    validate_steps=250,
)


@dataclass(frozen=True, kw_only=True)
class HardAttentionSettings:
    """How words are said, and who listens."""

    longest_hold: Few = 4
    """A letter is held for 1 to so many frames."""
    noise: Share = 0.1
    """The share of frames that are drowned by a random letter."""
    d_embed: Width = 64
    """Numbers of a letter's vector."""
    d_hidden: Width = 128
    """Units of the GRU."""
    n_samples: Few = 2
    """Walks over each word from which the policy gradient is estimated."""
    reward_weight: NonNegative = 1.0
    """How much of the policy gradient is learnt from; 0: the coin learns nothing."""
    entropy_weight: NonNegative = 0.5
    """What a nat of indecision is worth, in nats of likelihood."""
    batch_tokens: Many = 4096
    """Frames in a batch, padding included."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def restore(settings: HardAttentionSettings, kept: Mapping[str, Any]) -> nn.Module:
    """The untrained model."""
    from saccade.zoo.recipes.drawling import coder_of, make_model

    return make_model(settings, coder_of(kept))


RECIPES = (
    Recipe(
        name="hard-attention",
        about="Writes drawled words down while they are said; when, is learnt by policy gradient.",
        system="hard_attention",
        task="drawl",
        metric="words",
        note="A frame in ten is a random letter, like one that is held briefly: without them "
        "(`--set noise=0 --set steps=2000`) 94 % of words. The paper writes down speech (TIMIT, "
        "licensed): there is no number to stand beside.",
        minutes=15.0,
        settings=HardAttentionSettings(),
        build=Later("drawling.drawling_job"),
        restore=restore,
        evaluate=Later("drawling.evaluate_drawling"),
        trace=Later("drawling.trace_of"),
        translate=Later("drawling.write_down"),
    ),
)
