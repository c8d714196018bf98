"""Spoken digits by Listen, Attend and Spell: a pyramid listens, attention finds the next digit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from saccade.zoo.recipes.digit_settings import DigitSettings, digit_recipe
from saccade.zoo.training.config import BelowOne, Few, Width

if TYPE_CHECKING:
    from torch import nn

    from saccade.zoo.training.job import Job


@dataclass(frozen=True, kw_only=True)
class LasDigitSettings(DigitSettings):
    """The listener's and the speller's sizes, and how the speller attends."""

    n_layers: Few = 3
    """Layers of the pyramid; each halves the steps, which begin at 10 ms."""
    d_embed: Width = 32
    """Numbers of a digit's vector."""
    score: Literal["additive", "bilinear", "mixed"] = "additive"
    """What attention compares: content by additive or bilinear; mixed: also where it looked."""
    select: Literal["soft", "monotonic"] = "soft"
    """soft: anywhere; monotonic: only from left to right."""
    smoothing: BelowOne = 0.1
    """Label smoothing: the share of each target that is spread over all symbols."""


def build(settings: LasDigitSettings, data: Path | None) -> Job:
    """New sequences at every step, out of the recordings of the split."""
    from saccade.zoo.recipes.hearing import digits_job

    return digits_job(settings, data, model=restore(settings, {}), smoothing=settings.smoothing)


def restore(settings: LasDigitSettings, kept: Mapping[str, Any]) -> nn.Module:
    """The untrained model."""
    del kept
    from saccade.zoo.models.listen_attend_spell import ListenAttendSpell
    from saccade.zoo.recipes.hearing import N_BANDS, N_SYMBOLS

    return ListenAttendSpell(
        d_frame=N_BANDS,
        n_symbols=N_SYMBOLS,
        d_hidden=settings.d_hidden,
        d_embed=settings.d_embed,
        n_layers=settings.n_layers,
        score=settings.score,
        select=settings.select,
        dropout=settings.dropout,
    )


RECIPES = (
    digit_recipe(
        "las-digits",
        LasDigitSettings(),
        system="listen_attend_spell",
        build=build,
        restore=restore,
        about="Listens to 3 to 7 spoken digits and spells them; held-out recordings.",
        at_least=3.0,
        note="Per cent of digits. There is no published number for joined digits of this data.",
    ),
    digit_recipe(
        "las-digits-location",
        LasDigitSettings(score="mixed"),
        system="listen_attend_spell",
        build=build,
        restore=restore,
        about="The same with attention that is told where it looked before.",
        source="https://arxiv.org/abs/1506.07503",
    ),
    digit_recipe(
        "las-digits-monotonic",
        LasDigitSettings(select="monotonic"),
        system="listen_attend_spell",
        build=build,
        restore=restore,
        about="The same with attention that cannot go back.",
        source="https://arxiv.org/abs/1704.00784",
    ),
    digit_recipe(
        "las-digits-speaker",
        LasDigitSettings(speaker="theo", speeds=(0.8, 0.9, 1.0, 1.1, 1.2)),
        system="listen_attend_spell",
        build=build,
        restore=restore,
        about="Spells spoken digits of a speaker who was never heard before.",
        note="Five speakers are few to learn from what a sixth will sound like.",
    ),
)
