"""The recipe `luong-multi30k`: Luong's attentions, German to English; settings choose which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from saccade.zoo.recipes.translation import RECURRENT, TranslationSettings, translation_recipe
from saccade.zoo.training.config import BelowOne, Few, Many, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn

# The paper halves plain SGD's rate after every epoch from the fifth on; a straight line does too.
TRAINING = replace(RECURRENT, steps=5000, minutes=44.0)


@dataclass(frozen=True, kw_only=True)
class LuongSettings(TranslationSettings):
    """Which of the paper's attentions, and sizes that fit 29,000 sentence pairs."""

    attention: Literal["dot", "general", "concat", "location"] = "general"
    """How a source word is scored: dot, general, concat or location."""
    view: Literal["global", "local-m", "local-p"] = "global"
    """What is seen: global, or a window: local-m (moves on by itself), local-p (is predicted)."""
    reach: Few = 10
    """How far a window goes to either side, in tokens."""
    is_fed: bool = True
    """Input feeding: the decoder is told what it read a step before."""
    d_hidden: Width = 256
    """Units of an LSTM layer, and numbers of a word vector."""
    n_layers: Few = 2
    """Layers of the encoder, and of the decoder."""
    dropout: BelowOne = 0.4
    """Of embeddings, between layers, of what is attended to and before the output."""
    n_pieces: Many = 4000
    """How many different tokens there are."""
    batch_tokens: Many = 2048
    """Tokens in a batch on its larger side, padding included."""
    smoothing: BelowOne = 0.1
    """Label smoothing: the share of each target that is spread over all tokens."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def make_model(settings: LuongSettings, n_source: int, n_target: int) -> nn.Module:
    """The model of these settings."""
    from saccade.zoo.models.luong import LuongTranslator, luong_attention

    return LuongTranslator(
        n_source=n_source,
        n_target=n_target,
        attention=luong_attention(
            settings.attention, settings.view, d_hidden=settings.d_hidden, reach=settings.reach
        ),
        d_hidden=settings.d_hidden,
        n_layers=settings.n_layers,
        dropout=settings.dropout,
        is_fed=settings.is_fed,
    )


RECIPES = (
    translation_recipe(
        name="luong-multi30k",
        about="An LSTM translator with one of Luong's attentions, German to English.",
        system="luong",
        settings=LuongSettings(),
        make_model=make_model,
        published=20.9,
        source="Luong et al. 2015, table 1 (WMT'14 English to German), local-p, general",
        note="There 4.5 million sentence pairs of news; here 29,000 image descriptions.",
        minutes=44.0,
    ),
)
