"""Sequence to sequence on Multi30k: source forwards, source reversed; several runs, an ensemble.

Sutskever et al., 2014 (https://arxiv.org/abs/1409.3215), table 1: reversed is better than forwards,
and several together are better than one. `saccade eval` of three runs with different seeds is the
third row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from saccade.zoo.recipes.translation import TranslationSettings, translation_recipe
from saccade.zoo.training.config import BelowOne, Few, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn

# The paper clips at 5; it has plain SGD, with which ten passes would not be enough.
TRAINING = TrainConfig(
    steps=4000,
    minutes=40.0,
    learning_rate=3e-3,
    clip=1.0,
    schedule="linear",
    warmup=200,
    average_last=3,
)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSettings(TranslationSettings):
    """What can be set about sequence to sequence."""

    d_embed: Width = 256
    """Width of the word vectors."""
    d_hidden: Width = 256
    """Units of each LSTM layer."""
    n_layers: Few = 2
    """Layers of the encoder, and of the decoder."""
    dropout: BelowOne = 0.2
    """Between layers, never from step to step."""


def make_model(settings: Seq2SeqSettings, n_source: int, n_target: int) -> nn.Module:
    """The model that the settings describe."""
    from saccade.zoo.models.seq2seq import Seq2Seq

    return Seq2Seq(
        n_source=n_source,
        n_target=n_target,
        d_embed=settings.d_embed,
        d_hidden=settings.d_hidden,
        n_layers=settings.n_layers,
        dropout=settings.dropout,
    )


REVERSED = Seq2SeqSettings(is_reversed=True, batch_tokens=2048, n_pieces=4000, training=TRAINING)
TABLE = "Sutskever et al. 2014, table 1 (WMT'14 English to French)"
NOTE = "There 12 million sentence pairs and 4 layers of 1000; here 29,000 pairs and 20 minutes."

RECIPES = (
    translation_recipe(
        name="seq2seq-multi30k",
        about="Sequence to sequence without attention, source reversed, German to English.",
        system="seq2seq",
        settings=REVERSED,
        make_model=make_model,
        published=30.59,
        source=TABLE,
        note=NOTE,
        minutes=22.0,
        trace=None,
    ),
    translation_recipe(
        name="seq2seq-multi30k-forward",
        about="The same with the source read forwards: what reversing it is worth.",
        system="seq2seq",
        settings=replace(REVERSED, is_reversed=False),
        make_model=make_model,
        published=26.17,
        source=TABLE,
        note=NOTE,
        minutes=22.0,
        trace=None,
    ),
)
