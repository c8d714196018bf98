"""The recipe `grammar-treebank`: sentences are translated into their parse trees.

Grammar as a foreign language (Vinyals et al., 2015, https://arxiv.org/abs/1412.7449): parse trees
of the Wall Street Journal, from a small sample.

Where we differ: theirs is trained on all 40,000 sentences and scored on section 23; ours is trained
on 3,100 of the free sample and scored on others of it. In addition to the tree, ours predicts parts
of speech.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ensemble import Ensemble
from saccade.zoo.decoding.stepper import Hypothesis, Stepper
from saccade.zoo.models.grammar_parser import GrammarParser
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.recipe import Recipe, Translated, TranslateOptions
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.pairs import PairBatch, Pairs
from saccade.zoo.tasks.text import JOINT, split_words
from saccade.zoo.tasks.treebank import (
    WORD,
    Tree,
    delinearise,
    linearise,
    read_treebank,
    score_trees,
    word_class,
)
from saccade.zoo.tasks.vocabulary import EOS, PAD, SYMBOLS, Padded, Ragged, Vocabulary
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import BelowOne, Few, Many, NonNegative, TrainConfig, Width

TOGETHER = 128  # sentences that are parsed at once

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
    """The sentences and the parser."""

    max_words: Many = 30
    """Longer sentences are not scored."""
    train_words: Many = 50
    """Longer sentences are left out of training."""
    min_count: Many = 2
    """Rarer words are replaced by their class."""
    word_dropout: NonNegative = 0.5
    """A word seen n times becomes its class with probability word_dropout / (word_dropout + n)."""
    tag_weight: NonNegative = 0.5
    """Weight of the part-of-speech loss, relative to that of the tree."""
    batch_tokens: Many = 1500
    """Symbols in a batch, padding included."""
    d_embed: Width = 128
    """Embedding dimension."""
    d_hidden: Width = 200
    """Hidden size of an encoder layer in each direction; a decoder layer has twice as much."""
    n_layers: Few = 2
    """Layers of the encoder, and of the decoder."""
    dropout: BelowOne = 0.4
    """Dropout between layers."""
    beam: Few = 5
    """Beam size."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class GrammarRecipe(Recipe):
    """A translator from sentences to brackets; several runs together make an ensemble."""

    system: str = "grammar_parser"
    task: str = "treebank"
    metric: str = "f1"

    def build(self, settings: GrammarSettings, data: Path | None) -> Job:
        """Learn trees and parts of speech."""
        splits = read_treebank(data)
        train = [tree for tree in splits.train if len(tree.words()) <= settings.train_words]
        valid = [tree for tree in splits.valid if len(tree.words()) <= settings.max_words]
        symbols = Symbols.learn(train, min_count=settings.min_count)
        pairs = Pairs.of(
            symbols.encode_words([tree.words() for tree in train]),
            symbols.pieces.encode_all(map(linearise, train)),
        )
        tags = symbols.tags.encode_all([leaf.label for leaf in tree.leaves()] for tree in train)
        kept = symbols.to_kept()
        model = self.restore(settings, kept)
        rarity = rarity_of(symbols, settings.word_dropout)

        def batches(epoch: int) -> list[PairBatch]:
            seed = settings.training.seed
            chance = generator_of(seed + 1, epoch)
            return [  # a list, so that the schedule knows how many there are
                batch._replace(source=blurred(batch.source, model.classes, rarity, chance))
                for batch in pairs.batches(tokens=settings.batch_tokens, seed=seed, epoch=epoch)
            ]

        def loss(model: nn.Module, batch: PairBatch) -> LossOut:
            wanted = to_device_of(model, tags.pad(batch.rows.cpu()).ids)
            return _loss(model, batch, wanted, tag_weight=settings.tag_weight)

        return Job(
            model=model,
            batches=batches,
            loss=loss,
            validate=lambda model: _metrics([model], valid, symbols, size=1),
            score="f1",
            is_better="more",
            config=settings.training,
            kept=kept,
        )

    def restore(self, settings: GrammarSettings, kept: Mapping[str, Any]) -> GrammarParser:
        """The untrained model."""
        symbols = Symbols.from_kept(kept)
        return GrammarParser(
            pieces=symbols.pieces.words,
            classes=symbols.classes(),
            n_tags=len(symbols.tags),
            d_embed=settings.d_embed,
            d_hidden=settings.d_hidden,
            n_layers=settings.n_layers,
            dropout=settings.dropout,
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Labelled brackets of test sentences, by beam search and greedily."""
        settings, symbols = run.settings, Symbols.from_kept(run.kept)
        test = read_treebank(data, max_words=settings.max_words).test
        found = _metrics(run.models, test, symbols, size=settings.beam)
        alone = _metrics(run.models, test, symbols, size=1)
        return {**found, "greedy_f1": alone["f1"], "sentences": float(len(test))}

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """Where attention goes while a sentence's tree is decoded, and the current word.

        The parser receives the current word as input, so its attention need not follow it: it may
        stay at one position.
        """
        del data
        symbols, words = Symbols.from_kept(run.kept), _split(text)
        (found,) = _search([run.model], [words], symbols, size=run.settings.beam)
        assert found.weights is not None, "a parser returns its weights"
        weights, pieces = found.weights.cpu(), symbols.pieces.decode(found.ids)
        is_word = torch.tensor([piece == WORD for piece in pieces])
        in_turn = functional.one_hot(
            functional.pad(is_word.cumsum(0), (1, 0)), len(words) + 1
        )  # [step, word]
        return [
            Trace(
                kind="attention",
                steps=(*pieces, SYMBOLS[EOS]),
                memory=(*words, SYMBOLS[EOS]),
                weights=torch.stack([weights, in_turn.to(weights)]),
                views=("attention", "current word"),
                title=str(delinearise(pieces, words).tree),
            )
        ]

    def translate(
        self,
        run: TrainedRun,
        texts: Sequence[str],
        options: TranslateOptions,
        *,
        data: Path | None = None,
    ) -> list[Translated]:
        """The tree of each sentence, in brackets."""
        del data  # the texts come from the user
        symbols, sentences = Symbols.from_kept(run.kept), [_split(text) for text in texts]
        found = _search(run.models, sentences, symbols, size=options.beam)
        return [
            Translated(str(delinearise(symbols.pieces.decode(each.ids), words).tree), each.log_prob)
            for each, words in zip(found, sentences, strict=True)
        ]

    def unknown_words(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[str]:
        """Words of a sentence of which the run knows neither the word nor its class."""
        known = Symbols.from_kept(run.kept).words
        return [
            word for word in _split(text) if word not in known and word_class(word) not in known
        ]


@dataclass(frozen=True)
class Symbols:
    """Words, brackets and tags, and the count of each word."""

    words: Vocabulary
    """Frequent words, and all word classes."""
    pieces: Vocabulary
    tags: Vocabulary
    counts: tuple[int, ...]
    """Count of each word; 0 for symbols and classes."""

    @classmethod
    def learn(cls, trees: Sequence[Tree], *, min_count: int) -> Symbols:
        """From training trees."""
        seen = Counter(word for tree in trees for word in tree.words())
        common = sorted(word for word, n in seen.items() if n >= min_count)
        classes = sorted({word_class(word) for word in seen})
        words = Vocabulary((*SYMBOLS, *common, *(c for c in classes if c not in seen)))
        return cls(
            words,
            Vocabulary.build(map(linearise, trees)),
            Vocabulary.build([leaf.label for leaf in tree.leaves()] for tree in trees),
            tuple(seen[word] if word in common else 0 for word in words.words),
        )

    def to_kept(self) -> dict[str, Any]:
        """As JSON."""
        held = {name: list(getattr(self, name).words) for name in ("words", "pieces", "tags")}
        return {**held, "counts": list(self.counts)}

    @classmethod
    def from_kept(cls, kept: Mapping[str, Any]) -> Symbols:
        """Restored from `to_kept`."""
        words, pieces, tags = (
            Vocabulary(tuple(kept[name])) for name in ("words", "pieces", "tags")
        )
        return cls(words, pieces, tags, tuple(kept["counts"]))

    def classes(self) -> list[int]:
        """The class of each word, as an id; symbols and classes are their own."""
        own = [self.words.ids.get(word_class(word)) for word in self.words.words]
        return [
            at if at < len(SYMBOLS) or self.counts[at] == 0 or found is None else found
            for at, found in enumerate(own)
        ]

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> Ragged:
        """Ids of words; unknown ones become their class, or UNK."""
        known = self.words.ids
        return self.words.encode_all(
            (word if word in known else word_class(word) for word in words) for words in sentences
        )

    def sources(self, sentences: Sequence[Sequence[str]]) -> Padded:
        """Sentences to parse."""
        return self.encode_words(sentences).between(last=EOS).pad(torch.arange(len(sentences)))


def rarity_of(symbols: Symbols, word_dropout: float) -> Tensor:
    """The probability of each word to be replaced by its class in training.

    Kiperwasser and Goldberg, 2016 (https://arxiv.org/abs/1603.04351), section 5: so that a class is
    also learnt from frequent words.
    """
    counts = torch.tensor(symbols.counts, dtype=torch.float)
    return torch.where(counts > 0, word_dropout / (word_dropout + counts.clamp_min(1)), 0.0)


def blurred(source: Tensor, classes: Tensor, rarity: Tensor, chance: torch.Generator) -> Tensor:
    """Some words replaced by their classes, rare ones more often."""
    drawn = torch.rand(source.shape, generator=chance)
    return torch.where(drawn < rarity[source], classes.cpu()[source], source)


def _loss(model: nn.Module, batch: PairBatch, tags: Tensor, *, tag_weight: float) -> LossOut:
    """Mean loss in nats per symbol of the tree, and per part of speech."""
    assert isinstance(model, GrammarParser)
    encoded = model.encode(batch.source, batch.source_mask)
    tree = token_loss(model.write(encoded, batch), batch.target_out[batch.target_mask])
    is_word = tags != PAD
    found = model.tag(encoded)[:, : tags.shape[1]][is_word]
    of_tags = functional.cross_entropy(found, tags[is_word])
    logged = {"tree": tree.loss.detach(), "tags": of_tags.detach()}
    return LossOut(tree.loss + tag_weight * of_tags, tree.n_tokens, logged)


def _metrics(
    models: Sequence[nn.Module], trees: Sequence[Tree], symbols: Symbols, *, size: int
) -> dict[str, float]:
    """Brackets of found trees against the right ones."""
    sentences = [tree.words() for tree in trees]
    found = [
        delinearise(symbols.pieces.decode(each.ids), words)
        for each, words in zip(
            _search(models, sentences, symbols, size=size), sentences, strict=True
        )
    ]
    scores = score_trees(trees, [each.tree for each in found])
    return {
        "f1": scores.f1,
        "precision": scores.precision,
        "recall": scores.recall,
        "complete": scores.complete,
        "repairs": float(sum(each.n_repairs for each in found)),
    }


def _search(
    models: Sequence[nn.Module],
    sentences: Sequence[Sequence[str]],
    symbols: Symbols,
    *,
    size: int,
) -> list[Hypothesis]:
    """The most likely tree of each sentence."""
    parsers = [model for model in models if isinstance(model, GrammarParser)]
    stepper: Stepper = Ensemble(parsers) if len(parsers) > 1 else parsers[0]
    lengths = torch.tensor([len(words) for words in sentences])
    found: dict[int, Hypothesis] = {}
    for rows in lengths.argsort(stable=True).split(TOGETHER):
        at: list[int] = rows.tolist()
        source = to_device_of(parsers[0], symbols.sources([sentences[row] for row in at]))
        limit = parsers[0].rules.most_symbols(lengths[rows])
        result = beam(stepper, source, size=size, max_length=to_device_of(parsers[0], limit))
        found.update(zip(at, result.best, strict=True))
    return [found[row] for row in range(len(sentences))]


def _split(text: str) -> list[str]:
    """The words of a user's sentence, punctuation marks apart."""
    words = [word.replace(JOINT, "") for word in split_words(text)]
    if not words:
        raise UsageError(f"there is no word in {text!r}", hint="give at least one word")
    return words


RECIPES = (
    GrammarRecipe(
        name="grammar-treebank",
        settings=GrammarSettings(),
        about="Translates sentences into their parse trees, bracket by bracket.",
        target=70.0,
        published=88.3,
        source="Vinyals et al., 2015, table 1, https://arxiv.org/abs/1412.7449",
        note="Theirs is trained on all 40,000 sentences of the Wall Street Journal and scored on "
        "section 23; ours is trained on 3,100 of the free sample, and scored on others of it.",
        minutes=14.0,
    ),
)
