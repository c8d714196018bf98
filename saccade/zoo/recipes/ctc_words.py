"""The recipe `ctc-words`: handwritten words of persons who were never seen before, by CTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, BelowOne, Few, Fews, NonNegative, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn


TRAINING = TrainConfig(
    epochs=24,
    minutes=50.0,
    learning_rate=2e-3,
    clip=1.0,
    schedule="cosine",
    warmup=300,
)


@dataclass(frozen=True, kw_only=True)
class CtcWordSettings:
    """The recogniser's sizes, how words are changed in training, and how they are searched for."""

    d_hidden: Width = 160
    """Units of each LSTM, in each direction."""
    n_layers: Few = 2
    """Bidirectional LSTMs upon each other."""
    strides: Fews = (2, 2)
    """By how much each convolution thins the points out; a letter has some fifteen."""
    dropout: BelowOne = 0.3
    """Between layers and before the output."""
    warp: NonNegative = 1.0
    """How much words are slanted, stretched and tilted in training; 1: as much as hands differ."""
    batch: Batch = 64
    """Words in a batch."""
    beam: Few = 16
    """Texts that prefix beam search keeps."""
    order: Few = 6
    """Letters of the n-grams of the language model, which is counted on the training words."""
    weight: NonNegative = 0.5
    """How much the language model counts."""
    bonus: float = 1.0
    """What a letter is worth, in nats."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def restore(settings: CtcWordSettings, kept: Mapping[str, Any]) -> nn.Module:
    """The untrained model."""
    from saccade.zoo.recipes.pen_reading import coder_of, make_model

    return make_model(settings, coder_of(kept))


RECIPES = (
    Recipe(
        name="ctc-words",
        about="Reads handwritten words from pen strokes, of persons it has never seen before.",
        system="ctc_recogniser",
        task="pen_words",
        metric="error",
        is_better="less",
        at_least=15.0,
        note="Per cent of characters, by prefix beam search with letters' n-grams of the training "
        "words. Graves et al., 2009, read lines of another data set (IAM-OnDB).",
        minutes=40.0,
        settings=CtcWordSettings(),
        build=Later("pen_reading.words_job"),
        restore=restore,
        evaluate=Later("pen_reading.evaluate_words"),
        trace=Later("pen_reading.trace_word"),
        translate=Later("pen_reading.write_down"),
        may_differ=frozenset({"beam", "order", "weight", "bonus"}),
        gallery=("0", "1"),
    ),
)
