"""GNMT on Multi30k: wordpieces, a deep residual stack, attention from its lowest layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from saccade.zoo.recipes.translation import RECURRENT, TranslationSettings, translation_recipe
from saccade.zoo.training.config import BelowOne, Few, Width

if TYPE_CHECKING:
    from torch import nn

TRAINING = replace(RECURRENT, steps=3200, minutes=44.0)


@dataclass(frozen=True, kw_only=True)
class GnmtSettings(TranslationSettings):
    """What can be set about GNMT."""

    d_model: Width = 256
    """Width of every layer."""
    n_layers: Few = 4
    """Layers of the encoder, and of the decoder; from the third on they are residual."""
    dropout: BelowOne = 0.3
    """Between layers, never from step to step; 0.2 in the paper, which has far more data."""


def make_model(settings: GnmtSettings, n_source: int, n_target: int) -> nn.Module:
    """The model that the settings describe."""
    from saccade.zoo.models.gnmt import Gnmt

    return Gnmt(
        n_source=n_source,
        n_target=n_target,
        d_model=settings.d_model,
        n_layers=settings.n_layers,
        dropout=settings.dropout,
    )


RECIPES = (
    translation_recipe(
        name="gnmt-multi30k",
        about="GNMT: deep residual LSTMs over wordpieces with attention, German to English.",
        system="gnmt",
        settings=GnmtSettings(
            coding="wordpiece", n_pieces=4000, batch_tokens=2048, smoothing=0.1, training=TRAINING
        ),
        make_model=make_model,
        published=24.61,
        source="Wu et al. 2016, table 5 (WMT'14 English to German, wordpieces of 32k)",
        note="There 8 + 8 layers of 1024, 5 million pairs of news; here captions, the other way.",
        minutes=44.0,
    ),
)
