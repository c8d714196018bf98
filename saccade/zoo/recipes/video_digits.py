"""Recipes `video-digits*`: what moves where, and when, in films of digits.

Yao et al., 2015 (https://arxiv.org/abs/1502.08029), table 1, has four systems: a plain encoder and
decoder, with attention over frames, with convolutions over space and time, and with both. On
YouTube2Text both help, and both together most (METEOR 0.2868, 0.2900, 0.2832, 0.2960).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, Side, TrainConfig, Width

TRAINING = TrainConfig(
    epochs=4,
    minutes=58.0,
    learning_rate=2e-3,
    schedule="cosine",
    warmup=200,
    clip=1.0,
)


@dataclass(frozen=True, kw_only=True)
class VideoDigitsSettings:
    """What is shown, and who describes it."""

    size: Side = 40
    """Pixels of a frame's side; a digit has 28."""
    looking: Literal["soft", "mean"] = "soft"
    """By attention over the frames, or at all of them alike."""
    has_motion: bool = True
    """Convolutions over space and time beside those over each frame."""
    d_frame: Width = 128
    """Numbers of a frame's vector."""
    d_embed: Width = 64
    """Numbers of a word's vector."""
    d_hidden: Width = 128
    """Units of the LSTM."""
    batch: Batch = 64
    """Films in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def _recipe(name: str, settings: VideoDigitsSettings, *, about: str, minutes: float) -> Recipe:
    return Recipe(
        name=name,
        about=about,
        system="video_describer",
        task="moving_digits",
        metric="exact",
        note="Whole sentences of the model's own. The paper's films cannot be had; its table has "
        "the same four systems.",
        minutes=minutes,
        settings=settings,
        build=Later("describing.films_job"),
        restore=Later("describing.films_model", takes=1),
        evaluate=Later("describing.evaluate_films"),
        trace=Later("describing.trace_film"),
        gallery=("0", "7") if settings.looking == "soft" else (),
    )


BOTH = VideoDigitsSettings()
RECIPES = (
    _recipe(
        "video-digits",
        BOTH,
        about="Tells what moves where in a film, by attention over frames and 3-D convolutions.",
        minutes=25.0,
    ),
    _recipe(
        "video-digits-attention",
        replace(BOTH, has_motion=False),
        about="The same by attention over frames, each of them seen by itself.",
        minutes=15.0,
    ),
    _recipe(
        "video-digits-motion",
        replace(BOTH, looking="mean"),
        about="The same by 3-D convolutions, without attention: every frame counts alike.",
        minutes=25.0,
    ),
    _recipe(
        "video-digits-plain",
        replace(BOTH, looking="mean", has_motion=False),
        about="The control: each frame by itself, and every one counts alike.",
        minutes=15.0,
    ),
)
