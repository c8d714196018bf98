"""Spoken digits by CTC: every step of the recording says a digit or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.zoo.recipes.digit_settings import DigitSettings, digit_recipe
from saccade.zoo.training.config import Few, Fews

if TYPE_CHECKING:
    from torch import nn

    from saccade.zoo.training.job import Job


@dataclass(frozen=True, kw_only=True)
class CtcDigitSettings(DigitSettings):
    """The recogniser's sizes."""

    n_layers: Few = 2
    """Bidirectional LSTMs upon each other."""
    strides: Fews = (2, 2)
    """By how much each convolution thins the frames out, which come every 10 ms."""


def build(settings: CtcDigitSettings, data: Path | None) -> Job:
    """New sequences at every step, out of the recordings of the split."""
    from saccade.zoo.recipes.hearing import digits_job

    return digits_job(settings, data, model=restore(settings, {}))


def restore(settings: CtcDigitSettings, kept: Mapping[str, Any]) -> nn.Module:
    """The untrained model."""
    del kept
    from saccade.zoo.models.ctc_recogniser import CtcRecogniser
    from saccade.zoo.recipes.hearing import N_BANDS, N_SYMBOLS

    return CtcRecogniser(
        d_frame=N_BANDS,
        n_symbols=N_SYMBOLS,
        d_hidden=settings.d_hidden,
        n_layers=settings.n_layers,
        strides=settings.strides,
        dropout=settings.dropout,
    )


RECIPES = (
    digit_recipe(
        "ctc-digits",
        CtcDigitSettings(),
        system="ctc_recogniser",
        build=build,
        restore=restore,
        about="Writes down 3 to 7 spoken digits; held-out recordings of known speakers.",
        at_least=2.0,
        note="Per cent of digits. There is no published number for joined digits of this data.",
    ),
    digit_recipe(
        "ctc-digits-speaker",
        CtcDigitSettings(speaker="theo", speeds=(0.8, 0.9, 1.0, 1.1, 1.2)),
        system="ctc_recogniser",
        build=build,
        restore=restore,
        about="Writes down spoken digits of a speaker who was never heard before.",
        note="Five speakers are few to learn from what a sixth will sound like.",
    ),
)
