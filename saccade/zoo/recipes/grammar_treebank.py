"""Grammar as a foreign language: parse trees of the Wall Street Journal, from a small sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import BelowOne, Few, Many, NonNegative, TrainConfig, Width

if TYPE_CHECKING:
    from saccade.zoo.models.grammar_parser import GrammarParser

TRAINING = TrainConfig(
    epochs=20,
    minutes=40.0,
    optimiser="adamw",
    learning_rate=2e-3,
    betas=(0.9, 0.99),
    weight_decay=0.01,
    clip=1.0,
    schedule="cosine",
    warmup=100,
    average_last=5,
)


@dataclass(frozen=True, kw_only=True)
class GrammarSettings:
    """Which sentences, and what parses them."""

    max_words: Many = 30
    """Longer sentences are not scored."""
    train_words: Many = 50
    """Longer sentences are not learnt from."""
    min_count: Many = 2
    """Words that are rarer are known by their class alone."""
    word_dropout: NonNegative = 0.5
    """A word seen n times becomes its class with probability word_dropout / (word_dropout + n)."""
    tag_weight: NonNegative = 0.5
    """Of the loss of the parts of speech beside that of the tree."""
    batch_tokens: Many = 1500
    """Symbols in a batch, padding included."""
    d_embed: Width = 128
    """Width of embeddings."""
    d_hidden: Width = 200
    """Width of a reading layer each way; a writing layer has twice as much."""
    n_layers: Few = 2
    """Layers that read, and as many that write."""
    dropout: BelowOne = 0.4
    """Of what goes up from layer to layer."""
    beam: Few = 5
    """Trees that are kept while one is searched for."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def restore(settings: GrammarSettings, kept: Mapping[str, Any]) -> GrammarParser:
    """The untrained model."""
    from saccade.zoo.recipes.parsing import Symbols, make_model

    return make_model(settings, Symbols.from_kept(kept))


RECIPES = (
    Recipe(
        name="grammar-treebank",
        about="Translates sentences into their parse trees, bracket by bracket.",
        system="grammar_parser",
        task="treebank",
        metric="f1",
        at_least=70.0,
        published=88.3,
        source="Vinyals et al., 2015, table 1, https://arxiv.org/abs/1412.7449",
        note="Theirs learns from all 40,000 sentences of the Wall Street Journal and is scored on "
        "section 23; ours from 3,100 of the free sample, and is scored on others of it.",
        minutes=14.0,
        settings=GrammarSettings(),
        build=Later("parsing.parser_job"),
        restore=restore,
        evaluate=Later("parsing.evaluate_parser"),
        trace=Later("parsing.trace_tree"),
        translate=Later("parsing.parse_texts"),
        unknown_words=Later("parsing.unknown_words"),
    ),
)
