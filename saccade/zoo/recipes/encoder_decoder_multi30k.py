"""Cho's RNN encoder-decoder on Multi30k, as a translator and as a scorer of phrase pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from saccade.zoo.recipes.translation import RECURRENT, TranslationSettings, translation_recipe
from saccade.zoo.training.config import BelowOne, Width

if TYPE_CHECKING:
    from torch import nn

TRAINING = replace(RECURRENT, steps=4000, minutes=30.0)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSettings(TranslationSettings):
    """What can be set about the RNN encoder-decoder."""

    d_embed: Width = 128
    """Width of the word vectors."""
    d_hidden: Width = 384
    """Units of the two GRUs."""
    d_maxout: Width = 192
    """Units of the layer before the softmax."""
    dropout: BelowOne = 0.2
    """On word vectors and on the layer before the softmax; none in the paper."""


def make_model(settings: EncoderDecoderSettings, n_source: int, n_target: int) -> nn.Module:
    """The model that the settings describe."""
    from saccade.zoo.models.rnn_encoder_decoder import RnnEncoderDecoder

    return RnnEncoderDecoder(
        n_source=n_source,
        n_target=n_target,
        d_embed=settings.d_embed,
        d_hidden=settings.d_hidden,
        d_maxout=settings.d_maxout,
        dropout=settings.dropout,
    )


RECIPES = (
    translation_recipe(
        name="encoder-decoder-multi30k",
        about="Cho's RNN encoder-decoder: one summary vector, read at every step.",
        system="rnn_encoder_decoder",
        settings=EncoderDecoderSettings(n_pieces=4000, batch_tokens=2048, training=TRAINING),
        make_model=make_model,
        note="The paper lets it score the phrase pairs of another translator, not translate.",
        minutes=30.0,
        trace=None,
    ),
)
