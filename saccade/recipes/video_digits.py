"""Recipes `video-digits*`: what moves where, and when, in films of digits.

Yao et al., 2015 (https://arxiv.org/abs/1502.08029), table 1, has four systems: a plain encoder and
decoder, with attention over frames, with convolutions over space and time, and with both. On
YouTube2Text both help, and both together most (METEOR 0.2868, 0.2900, 0.2832, 0.2960).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from saccade.recipes.recipe import Recipe
from saccade.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import nn

    from saccade.recipes.opened import OpenRun
    from saccade.trace import ImageTrace, Trace
    from saccade.training import Job

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

    size: int = 40
    """Pixels of a frame's side; a digit has 28."""
    looking: Literal["soft", "mean"] = "soft"
    """By attention over the frames, or at all of them alike."""
    has_motion: bool = True
    """Convolutions over space and time beside those over each frame."""
    d_frame: int = 128
    """Numbers of a frame's vector."""
    d_embed: int = 64
    """Numbers of a word's vector."""
    d_hidden: int = 128
    """Units of the LSTM."""
    batch: int = 64
    """Films in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def build(settings: VideoDigitsSettings, data: Path | None) -> Job:
    """The job on films of the digits in ``data``."""
    from saccade.recipes.describing import films_job

    return films_job(settings, data)


def restore(settings: VideoDigitsSettings, kept: Mapping[str, Any]) -> nn.Module:
    """The untrained model."""
    del kept
    from saccade.recipes.describing import films_model

    return films_model(settings)


def evaluate(run: OpenRun, data: Path | None) -> Mapping[str, float]:
    """Per cent of sentences and words that are right, and of looks at the right frames."""
    from saccade.recipes.describing import evaluate_films

    return evaluate_films(run, data)


def trace(run: OpenRun, text: str) -> Sequence[Trace | ImageTrace]:
    """Which frames of a test film each word was looked for in."""
    from saccade.recipes.describing import trace_film

    return trace_film(run, text)


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
        build=build,
        restore=restore,
        evaluate=evaluate,
        trace=trace,
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
