"""Training, evaluating, using and watching a grammar parser."""

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
from saccade.zoo.recipes.grammar_treebank import GrammarSettings
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.options import Translated, TranslateOptions
from saccade.zoo.tasks.curricula import generator_of
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
from saccade.zoo.training.job import Job, LossOut, moved

TOGETHER = 128  # sentences that are parsed at once


@dataclass(frozen=True)
class Symbols:
    """Words, brackets and tags, and how often each word was seen."""

    words: Vocabulary
    """Common words, and the classes of all."""
    pieces: Vocabulary
    tags: Vocabulary
    counts: tuple[int, ...]
    """Of each word; 0 for symbols and classes."""

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
        """What `to_kept` gave."""
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
        """Ids of words; those that are not known become their class, or UNK."""
        known = self.words.ids
        return self.words.encode_all(
            (word if word in known else word_class(word) for word in words) for words in sentences
        )

    def sources(self, sentences: Sequence[Sequence[str]]) -> Padded:
        """Sentences that are to be parsed."""
        return self.encode_words(sentences).between(last=EOS).pad(torch.arange(len(sentences)))


def make_model(settings: GrammarSettings, symbols: Symbols) -> GrammarParser:
    """The untrained model."""
    return GrammarParser(
        pieces=symbols.pieces.words,
        classes=symbols.classes(),
        n_tags=len(symbols.tags),
        d_embed=settings.d_embed,
        d_hidden=settings.d_hidden,
        n_layers=settings.n_layers,
        dropout=settings.dropout,
    )


def parser_job(settings: GrammarSettings, data: Path | None) -> Job:
    """Learn trees, and beside them parts of speech."""
    splits = read_treebank(data)
    train = [tree for tree in splits.train if len(tree.words()) <= settings.train_words]
    valid = [tree for tree in splits.valid if len(tree.words()) <= settings.max_words]
    symbols = Symbols.learn(train, min_count=settings.min_count)
    pairs = Pairs.of(
        symbols.encode_words([tree.words() for tree in train]),
        symbols.pieces.encode_all(map(linearise, train)),
    )
    tags = symbols.tags.encode_all([leaf.label for leaf in tree.leaves()] for tree in train)
    model = make_model(settings, symbols)
    rarity = rarity_of(symbols, settings.word_dropout)

    def batches(epoch: int) -> list[PairBatch]:
        seed = settings.training.seed
        chance = generator_of(seed + 1, epoch)
        return [  # a list, so that the schedule knows how many there are
            batch._replace(source=blurred(batch.source, model.classes, rarity, chance))
            for batch in pairs.batches(tokens=settings.batch_tokens, seed=seed, epoch=epoch)
        ]

    def loss(model: nn.Module, batch: PairBatch) -> LossOut:
        wanted = moved(tags.pad(batch.rows.cpu()).ids, batch.source.device)
        return parser_loss(model, batch, wanted, tag_weight=settings.tag_weight)

    return Job(
        model=model,
        batches=batches,
        loss=loss,
        validate=lambda model: score([model], valid, symbols, size=1),
        score="f1",
        is_better="more",
        config=settings.training,
        kept=symbols.to_kept(),
    )


def rarity_of(symbols: Symbols, word_dropout: float) -> Tensor:
    """How likely each word is to be replaced by its class while training.

    Kiperwasser and Goldberg, 2016 (https://arxiv.org/abs/1603.04351), section 5: so that a class
    is also learnt from words that are known one by one.
    """
    counts = torch.tensor(symbols.counts, dtype=torch.float)
    return torch.where(counts > 0, word_dropout / (word_dropout + counts.clamp_min(1)), 0.0)


def blurred(source: Tensor, classes: Tensor, rarity: Tensor, chance: torch.Generator) -> Tensor:
    """Some words replaced by their classes, rare ones more often."""
    drawn = torch.rand(source.shape, generator=chance)
    return torch.where(drawn < rarity[source], classes.cpu()[source], source)


def parser_loss(model: nn.Module, batch: PairBatch, tags: Tensor, *, tag_weight: float) -> LossOut:
    """Mean nats of a symbol of the tree, and of a part of speech."""
    assert isinstance(model, GrammarParser)
    encoded = model.encode(batch.source, batch.source_mask)
    tree = token_loss(model.write(encoded, batch), batch.target_out[batch.target_mask])
    is_word = tags != PAD
    found = model.tag(encoded)[:, : tags.shape[1]][is_word]
    of_tags = functional.cross_entropy(found, tags[is_word])
    logged = {"tree": tree.loss.detach(), "tags": of_tags.detach()}
    return LossOut(tree.loss + tag_weight * of_tags, tree.n_tokens, logged)


def score(
    models: Sequence[nn.Module], trees: Sequence[Tree], symbols: Symbols, *, size: int
) -> dict[str, float]:
    """Brackets of found trees against the right ones."""
    sentences = [tree.words() for tree in trees]
    found = [
        delinearise(symbols.pieces.decode(each.ids), words)
        for each, words in zip(
            search(models, sentences, symbols, size=size), sentences, strict=True
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


def search(
    models: Sequence[nn.Module],
    sentences: Sequence[Sequence[str]],
    symbols: Symbols,
    *,
    size: int,
) -> list[Hypothesis]:
    """The likeliest tree of each sentence."""
    parsers = [model for model in models if isinstance(model, GrammarParser)]
    stepper: Stepper = Ensemble(parsers) if len(parsers) > 1 else parsers[0]
    device = parsers[0].classes.device
    lengths = torch.tensor([len(words) for words in sentences])
    found: dict[int, Hypothesis] = {}
    for rows in lengths.argsort(stable=True).split(TOGETHER):
        at: list[int] = rows.tolist()
        source = moved(symbols.sources([sentences[row] for row in at]), device)
        limit = parsers[0].rules.most_symbols(lengths[rows])
        result = beam(stepper, source, size=size, max_length=limit.to(device))
        found.update(zip(at, result.best, strict=True))
    return [found[row] for row in range(len(sentences))]


def evaluate_parser(run: OpenRun, data: Path | None) -> dict[str, float]:
    """Labelled brackets of test sentences, by beam search and greedily."""
    settings, symbols = run.settings, Symbols.from_kept(run.kept)
    test = read_treebank(data, max_words=settings.max_words).test
    found = score(run.models, test, symbols, size=settings.beam)
    alone = score(run.models, test, symbols, size=1)
    return {**found, "greedy_f1": alone["f1"], "sentences": float(len(test))}


def words_of(text: str) -> list[str]:
    """The words of a user's sentence, punctuation marks apart."""
    words = [word.replace(JOINT, "") for word in split_words(text)]
    if not words:
        raise UsageError(f"there is no word in {text!r}", hint="give at least one word")
    return words


def parse_texts(run: OpenRun, texts: Sequence[str], options: TranslateOptions) -> list[Translated]:
    """The tree of each sentence, in brackets."""
    symbols, sentences = Symbols.from_kept(run.kept), [words_of(text) for text in texts]
    found = search(run.models, sentences, symbols, size=options.beam)
    return [
        Translated(str(delinearise(symbols.pieces.decode(each.ids), words).tree), each.log_prob)
        for each, words in zip(found, sentences, strict=True)
    ]


def unknown_words(run: OpenRun, text: str) -> list[str]:
    """Words of a sentence that the run knows neither by themselves nor by their class."""
    known = Symbols.from_kept(run.kept).words
    return [word for word in words_of(text) if word not in known and word_class(word) not in known]


def trace_tree(run: OpenRun, text: str) -> list[Trace]:
    """Where attention goes while a sentence's tree is written, beside the word that is in turn.

    The parser is given the word in turn, so its attention need not follow: it may end up resting
    on one place.
    """
    symbols, words = Symbols.from_kept(run.kept), words_of(text)
    (found,) = search([run.model], [words], symbols, size=run.settings.beam)
    assert found.weights is not None, "a parser tells where it looks"
    pieces = symbols.pieces.decode(found.ids)
    is_word = torch.tensor([piece == WORD for piece in pieces])
    in_turn = functional.one_hot(
        functional.pad(is_word.cumsum(0), (1, 0)), len(words) + 1
    )  # [step, word]
    return [
        Trace(
            kind="attention",
            steps=(*pieces, SYMBOLS[EOS]),
            memory=(*words, SYMBOLS[EOS]),
            weights=torch.stack([found.weights, in_turn.to(found.weights)]),
            views=("attention", "the word in turn"),
            title=str(delinearise(pieces, words).tree),
        )
    ]
