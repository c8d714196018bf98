"""A character language model of Shakespeare's plays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.zoo.recipes.language_model import (
    LanguageModelSettings,
    language_model_recipe,
    make_rnn,
)
from saccade.zoo.training.config import BelowOne, Few, Part, Share, TrainConfig, Width

if TYPE_CHECKING:
    from saccade.zoo.tasks.text import TextCorpus

TRAINING = TrainConfig(
    epochs=20,
    minutes=42.0,
    optimiser="adamw",
    learning_rate=2e-3,
    betas=(0.9, 0.99),
    weight_decay=0.1,
    clip=1.0,
    schedule="cosine",
    warmup=100,
)


@dataclass(frozen=True, kw_only=True)
class CharlmSettings(LanguageModelSettings):
    """A stack of cells over characters."""

    d_embed: Width = 64
    """Width of a character's embedding."""
    d_hidden: Width = 448
    """Width of a layer."""
    n_layers: Few = 2
    """How many layers there are."""
    cell: str = "lstm"
    """Any cell of saccade.zoo.cells: lstm, gru, layer-norm-lstm, ..."""
    dropout: tuple[BelowOne, BelowOne] = (0.2, 0.5)
    """Of the embeddings, and of what each layer puts out."""
    is_tied: bool = False
    """The output's weights are the embedding's."""
    valid: Part = 0.02
    """Share of the text, before the last tenth, that is held out to choose the best weights by."""
    ngram_share: Share = 0.25
    """How much n-grams have to say in the figures, beside the network; Mikolov et al.'s share."""
    ngram_order: Few = 7
    """The longest of these n-grams; those of `ngram-characters`."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def read_corpus(settings: CharlmSettings, data: Path | None) -> TextCorpus:
    """The plays; their last tenth is the test, as nanoGPT cuts them."""
    from saccade.zoo.tasks.books import read_tinyshakespeare
    from saccade.zoo.tasks.text import make_corpus

    splits = read_tinyshakespeare(data, valid=settings.valid, test=0.1)
    return make_corpus(splits, unit="character")


RECIPES = (
    language_model_recipe(
        name="charlm-shakespeare",
        about="Writes Shakespeare character by character: an LSTM that reads on and on.",
        system="rnn_language_model",
        task="tinyshakespeare",
        metric="nats",
        settings=CharlmSettings(),
        read_corpus=read_corpus,
        make_model=make_rnn,
        at_least=1.48,
        published=1.4697,
        source="https://github.com/karpathy/nanoGPT (a Transformer of 10.7 million weights)",
        note="Ours is an LSTM that carries its state through the whole test text, with n-grams of "
        "the training text beside it at a fixed share, as in Mikolov et al., 2010; "
        "`nats_alone` is the network's. nanoGPT's Transformer sees at most 256 characters, and its "
        "figure is the best of the test text itself.",
        minutes=43.0,
    ),
)
