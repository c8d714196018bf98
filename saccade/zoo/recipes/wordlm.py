"""Word language models of 16 books: with a memory, and with none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.zoo.recipes.language_model import (
    LanguageModelSettings,
    language_model_recipe,
    make_rnn,
)
from saccade.zoo.training.config import BelowOne, Few, Many, TrainConfig, Width

if TYPE_CHECKING:
    from saccade.zoo.models.language_model import LanguageModel
    from saccade.zoo.tasks.text import TextCorpus

TRAINING = TrainConfig(
    epochs=6,
    minutes=44.0,
    optimiser="adamw",
    learning_rate=2e-3,
    betas=(0.9, 0.99),
    weight_decay=0.05,
    clip=1.0,
    schedule="cosine",
    warmup=200,
    precision="bfloat16",
)
MEMORYLESS_TRAINING = TrainConfig(
    epochs=6,
    minutes=30.0,
    optimiser="adamw",
    learning_rate=1e-3,
    betas=(0.9, 0.99),
    weight_decay=0.05,
    schedule="cosine",
    warmup=200,
    precision="bfloat16",
)
NOTE = (
    "The Penn Treebank's text, which published figures are of, cannot be had freely; "
    "`ngram-words` stands beside this one on the same words."
)


@dataclass(frozen=True, kw_only=True)
class WordSettings(LanguageModelSettings):
    """Which words there are."""

    n_words: Many = 10_000
    """How many different words, the commonest; all others are one word, <unk>."""
    streams: Many = 32
    """The text is cut into so many streams, which are read side by side."""
    window: Many = 64
    """Words of a stream that are read at once; gradients go no further back."""


@dataclass(frozen=True, kw_only=True)
class WordlmSettings(WordSettings):
    """A stack of cells over words."""

    d_embed: Width = 256
    """Width of a word's embedding, and of what is compared with all words at the output."""
    d_hidden: Width = 384
    """Width of a layer."""
    n_layers: Few = 2
    """How many layers there are."""
    cell: str = "lstm"
    """Any cell of saccade.zoo.cells: lstm, gru, layer-norm-lstm, ..."""
    dropout: tuple[BelowOne, BelowOne] = (0.3, 0.35)
    """Of the embeddings, and of what each layer puts out."""
    is_tied: bool = True
    """The output's weights are the embedding's."""
    training: TrainConfig = TRAINING
    """How it is trained."""


@dataclass(frozen=True, kw_only=True)
class MemorylessSettings(WordSettings):
    """A hidden layer over the last few words."""

    n_context: Few = 4
    """How many words it sees."""
    d_embed: Width = 100
    """Width of a word's embedding."""
    d_hidden: Width = 256
    """Width of the hidden layer."""
    dropout: BelowOne = 0.2
    """Of the hidden layer."""
    is_direct: bool = False
    """The embeddings also count directly for each word."""
    training: TrainConfig = MEMORYLESS_TRAINING
    """How it is trained."""


def read_corpus(settings: WordSettings, data: Path | None) -> TextCorpus:
    """The books; the last tenth of each is for the test."""
    from saccade.zoo.tasks.books import read_gutenberg
    from saccade.zoo.tasks.text import make_corpus

    splits = read_gutenberg(data, valid=settings.valid, test=0.1)
    return make_corpus(splits, unit="word", max_size=settings.n_words)


def make_memoryless(settings: MemorylessSettings, d_vocab: int) -> LanguageModel:
    """The untrained model without one."""
    from saccade.zoo.models.memoryless_language_model import MemorylessLanguageModel

    return MemorylessLanguageModel(
        d_vocab=d_vocab,
        d_embed=settings.d_embed,
        d_hidden=settings.d_hidden,
        n_context=settings.n_context,
        dropout=settings.dropout,
        is_direct=settings.is_direct,
    )


RECIPES = (
    language_model_recipe(
        name="wordlm",
        about="Writes books word by word: an LSTM that reads on and on.",
        system="rnn_language_model",
        task="gutenberg",
        metric="perplexity",
        settings=WordlmSettings(),
        read_corpus=read_corpus,
        make_model=make_rnn,
        note=NOTE,
        minutes=44.0,
    ),
    language_model_recipe(
        name="wordlm-memoryless",
        about="Writes books from the last four words alone: Bengio's neural language model.",
        system="memoryless_language_model",
        task="gutenberg",
        metric="perplexity",
        settings=MemorylessSettings(),
        read_corpus=read_corpus,
        make_model=make_memoryless,
        note=NOTE,
        minutes=32.0,
    ),
)
