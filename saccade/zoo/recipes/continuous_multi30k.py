"""Recurrent continuous translation on Multi30k: convolutions fold the source into one vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from saccade.zoo.recipes.translation import TranslationSettings, translation_recipe
from saccade.zoo.training.config import BelowOne, Few, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn

TRAINING = TrainConfig(minutes=9.0, learning_rate=1e-3, clip=5.0, schedule="plateau-halving")


@dataclass(frozen=True, kw_only=True)
class ContinuousSettings(TranslationSettings):
    """What can be set about recurrent continuous translation."""

    d_model: Width = 256
    """Width of the word vectors, which is that of the sentence vector and of the RNN."""
    n_kernels: Few = 8
    """Levels of convolution with a kernel of their own, from 2 words up."""
    dropout: BelowOne = 0.2
    """On word vectors and before the softmax; none in the paper."""


def make_model(settings: ContinuousSettings, n_source: int, n_target: int) -> nn.Module:
    """The model that the settings describe."""
    from saccade.zoo.models.continuous_translation import ContinuousTranslation

    return ContinuousTranslation(
        n_source=n_source,
        n_target=n_target,
        d_model=settings.d_model,
        n_kernels=settings.n_kernels,
        dropout=settings.dropout,
    )


RECIPES = (
    translation_recipe(
        name="continuous-multi30k",
        about="A convolutional sentence model conditions an RNN language model.",
        system="continuous_translation",
        settings=ContinuousSettings(n_pieces=6000, batch_tokens=2048, training=TRAINING),
        make_model=make_model,
        note="The paper measures perplexity and rescores; it does not decode with its model.",
        minutes=10.0,
        trace=None,
    ),
)
