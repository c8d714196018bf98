"""The hybrid word-character translator on Multi30k: rare words are read and spelled by letters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from saccade.zoo.recipes.translation import RECURRENT, TranslationSettings, translation_recipe
from saccade.zoo.training.config import BelowOne, Few, Width

if TYPE_CHECKING:
    from torch import nn

TRAINING = replace(RECURRENT, steps=3000, minutes=32.0)


@dataclass(frozen=True, kw_only=True)
class HybridSettings(TranslationSettings):
    """What can be set about the hybrid translator."""

    d_model: Width = 256
    """Width of the word level."""
    d_letter: Width = 128
    """Width of the character level."""
    n_layers: Few = 2
    """Layers of the word level's encoder, and of its decoder."""
    dropout: BelowOne = 0.3
    """Between layers, never from step to step; 0.2 in the paper."""


def make_model(settings: HybridSettings, n_source: int, n_target: int) -> nn.Module:
    """The model that the settings describe."""
    from saccade.zoo.models.hybrid_translator import HybridTranslator

    return HybridTranslator(
        n_source=n_source,
        n_target=n_target,
        d_model=settings.d_model,
        d_letter=settings.d_letter,
        n_layers=settings.n_layers,
        dropout=settings.dropout,
    )


RECIPES = (
    translation_recipe(
        name="hybrid-multi30k",
        about="Words with attention, rare words by their letters on both sides, German to English.",
        system="hybrid_translator",
        settings=HybridSettings(
            coding="spelled",
            is_joint=False,
            n_pieces=4000,
            batch_tokens=3000,
            training=TRAINING,
        ),
        make_model=make_model,
        published=20.7,
        source="Luong and Manning 2016, table 2 (WMT'15 English to Czech)",
        note="There news into Czech, with 15.8 million pairs; here captions into English.",
        minutes=32.0,
    ),
)
