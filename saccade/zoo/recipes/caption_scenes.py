"""Recipes `caption-scenes-*`: sentences about scenes of digits, where attention can be judged.

Xu et al., 2015, Show, Attend and Tell (https://arxiv.org/abs/1502.03044), with soft and with hard
attention; and, without any, Vinyals et al., 2015, Show and Tell (https://arxiv.org/abs/1411.4555).
The papers describe photographs and can only show pictures of where was looked. Here it is known
where each digit is: see `saccade.zoo.tasks.digit_captions`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, NonNegative, Side, TrainConfig, Width, Widths

TRAINING = TrainConfig(
    epochs=8,
    minutes=58.0,
    learning_rate=2e-3,
    schedule="cosine",
    warmup=200,
    clip=5.0,
)


@dataclass(frozen=True, kw_only=True)
class CaptionScenesSettings:
    """What is shown, and who describes it."""

    size: Side = 88
    """Pixels of a scene's side; a digit has 28."""
    looking: Literal["soft", "hard", "none"] = "soft"
    """Everywhere by weights; at one cell, drawn; or once at all, without attention."""
    channels: Widths = (24, 32, 64, 64, 96)
    """Of the five convolutions."""
    d_embed: Width = 64
    """Numbers of a word's vector."""
    d_hidden: Width = 128
    """Units of the LSTM."""
    cover_weight: NonNegative = 0.0
    """How much it counts that every cell should be looked at; a scene is mostly paper."""
    entropy_weight: NonNegative = 0.01
    """Of hard attention: what a nat of indecision is worth, in nats of likelihood."""
    reward_weight: NonNegative = 1.0
    """Of hard attention: how much of the policy gradient is learnt from."""
    batch: Batch = 64
    """Scenes in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def _recipe(
    name: str,
    settings: CaptionScenesSettings,
    *,
    about: str,
    system: str,
    at_least: float | None = None,
    on_digit: float | None = None,
    minutes: float,
    note: str,
) -> Recipe:
    return Recipe(
        name=f"caption-scenes-{name}",
        about=about,
        system=system,
        task="caption_scenes",
        metric="exact",
        at_least=at_least,
        beside={} if on_digit is None else {"on_digit": on_digit},
        note=note,
        minutes=minutes,
        settings=settings,
        build=Later("captioning.scenes_job"),
        restore=Later("captioning.scenes_model", takes=1),
        evaluate=Later("captioning.evaluate_scenes"),
        trace=Later("captioning.trace_scene"),
        gallery=("0", "7"),
    )


WHOLE = "Whole sentences of the model's own; `on_digit` is the share of names said with more than "
WHOLE += "half of the weight on the digit."
SOFT = CaptionScenesSettings()
RECIPES = (
    _recipe(
        "soft",
        SOFT,
        about="Says which digit is where, looking by soft attention at each as it is named.",
        system="show_attend_tell",
        at_least=97.0,
        on_digit=90.0,
        minutes=25.0,
        note=WHOLE,
    ),
    _recipe(
        "hard",
        replace(SOFT, looking="hard"),
        about="The same with hard attention: one cell for each word, chosen by policy gradient.",
        system="show_attend_tell",
        at_least=97.0,
        on_digit=90.0,
        minutes=25.0,
        note=WHOLE,
    ),
    _recipe(
        "tell",
        replace(SOFT, looking="none"),
        about="The control without attention: the image is read once, as the first word.",
        system="show_and_tell",
        minutes=20.0,
        note="Whole sentences of the model's own.",
    ),
)
