"""The recipe `bahdanau-multi30k`: the translator that learnt to align, German to English."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from saccade.zoo.recipes.translation import RECURRENT, TranslationSettings, translation_recipe
from saccade.zoo.training.config import BelowOne, Many, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn

# The paper trains with Adadelta for five days.
TRAINING = replace(RECURRENT, steps=4600, minutes=42.0, precision="float32")


@dataclass(frozen=True, kw_only=True)
class BahdanauSettings(TranslationSettings):
    """Sizes that fit 29,000 sentence pairs, and what keeps them from being learnt by heart."""

    n_pieces: Many = 4000
    """How many different tokens there are."""
    batch_tokens: Many = 2048
    """Tokens in a batch on its larger side, padding included."""
    smoothing: BelowOne = 0.1
    """Label smoothing: the share of each target that is spread over all tokens."""
    d_embed: Width = 256
    """Numbers of a word vector."""
    d_hidden: Width = 256
    """Units of each GRU; the encoder has two."""
    dropout: BelowOne = 0.4
    """Of embeddings, of annotations and before the output."""
    output: Literal["maxout", "tanh"] = "tanh"
    """What the deep output is made of: maxout as in the paper, or tanh, of half the size."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def make_model(settings: BahdanauSettings, n_source: int, n_target: int) -> nn.Module:
    """The model of these settings."""
    from saccade.zoo.models.bahdanau import BahdanauTranslator

    return BahdanauTranslator(
        n_source=n_source,
        n_target=n_target,
        d_embed=settings.d_embed,
        d_hidden=settings.d_hidden,
        dropout=settings.dropout,
        output=settings.output,
    )


RECIPES = (
    translation_recipe(
        name="bahdanau-multi30k",
        about="A GRU translator with additive attention, German to English.",
        system="bahdanau",
        settings=BahdanauSettings(),
        make_model=make_model,
        at_least=31.0,
        published=28.1,
        source="bentrevett/pytorch-seq2seq, packed and masked GRU of 20.5 M weights",
        note="Theirs is BLEU of lower-cased words by torchtext; ours is sacreBLEU of raw text.",
        minutes=43.0,
    ),
)
