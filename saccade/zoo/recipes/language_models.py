"""Recipes `charlm-*` and `wordlm*`: networks that predict the next character or word of a text.

- `charlm-shakespeare`: an LSTM over the characters of Shakespeare's plays, compared with nanoGPT's
  Transformer (https://github.com/karpathy/nanoGPT) on the same test text, mixed with n-grams of the
  training text at a fixed weight, as in Mikolov et al., 2010 ("Recurrent neural network based
  language model").
- `wordlm`: an LSTM over the words of 16 books. The Penn Treebank's text, on which published numbers
  are measured, is not free.
- `wordlm-memoryless`: the same words from only the last four, after Bengio et al., 2003 ("A neural
  probabilistic language model").

`TextRecipe` is shared with the n-gram models of `saccade.zoo.recipes.ngrams`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.cells.cell import detach, map_tensors, tensors_of
from saccade.zoo.decoding.greedy import check_draw, draw
from saccade.zoo.metrics.sequence_metrics import Perplexity, perplexity
from saccade.zoo.models.language_model import LanguageModel, MixedLanguageModel
from saccade.zoo.models.memoryless_language_model import MemorylessLanguageModel
from saccade.zoo.models.ngram import NgramLanguageModel
from saccade.zoo.models.rnn_language_model import RnnLanguageModel
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.recipe import Recipe, SampleOptions
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.books import read_gutenberg, read_tinyshakespeare
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.text import (
    TextBatch,
    TextCorpus,
    Unit,
    join_words,
    make_corpus,
    split_units,
    split_words,
    stream_batches,
)
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD, Vocabulary
from saccade.zoo.training.job import Carried, Job, LossOut, to_device_of
from saccade.zoo.training.settings import BelowOne, Few, Many, Part, Share, TrainConfig, Width

NEVER = [PAD, BOS]  # symbols that never occur in a text
VALID_STREAMS = 32
CHARLM_TRAINING = TrainConfig(
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
WORDLM_TRAINING = TrainConfig(
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
WORDLM_NOTE = (
    "The Penn Treebank's text, on which published metrics are measured, is not free; "
    "compare with `ngram-words` on the same words."
)


@dataclass(frozen=True, kw_only=True)
class LanguageModelSettings:
    """The settings of any neural language model; each recipe inherits from it."""

    valid: Part = 0.05
    """Fraction of the text for validation."""
    streams: Many = 32
    """Number of streams the text is cut into, which form a batch."""
    window: Many = 128
    """Window length in symbols: truncated backpropagation through time."""
    test_streams: Many = 4
    """The number of streams of the test text: few, because each starts with an empty state."""
    ngram_share: Share = 0.0
    """Weight of n-grams of the training text in the evaluated mixture with the network."""
    ngram_order: Few = 5
    """The order of these n-grams."""
    training: TrainConfig = field(default_factory=TrainConfig)
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class CharlmSettings(LanguageModelSettings):
    """A stack of cells over characters."""

    d_embed: Width = 64
    """Embedding dimension of a character."""
    d_hidden: Width = 448
    """Hidden size of a layer."""
    n_layers: Few = 2
    """Number of layers."""
    cell: str = "lstm"
    """Any cell of saccade.zoo.cells: lstm, gru, layer-norm-lstm, ..."""
    dropout: tuple[BelowOne, BelowOne] = (0.2, 0.5)
    """Dropout on embeddings and on the output of each layer."""
    is_tied: bool = False
    """Tie the output weights to the embedding."""
    valid: Part = 0.02
    """Fraction of the text, before the last tenth, for validation."""
    ngram_share: Share = 0.25
    """Weight of n-grams in the evaluated mixture with the network; Mikolov et al.'s value."""
    ngram_order: Few = 7
    """The order of these n-grams; that of `ngram-characters`."""
    training: TrainConfig = CHARLM_TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class WordSettings(LanguageModelSettings):
    """Settings of all word models."""

    n_words: Many = 10_000
    """Vocabulary size: the most frequent words; all others are <unk>."""
    streams: Many = 32
    """Number of streams the text is cut into, which form a batch."""
    window: Many = 64
    """Window length in words: truncated backpropagation through time."""


@dataclass(frozen=True, kw_only=True)
class WordlmSettings(WordSettings):
    """A stack of cells over words."""

    d_embed: Width = 256
    """Embedding dimension of a word, at input and output."""
    d_hidden: Width = 384
    """Hidden size of a layer."""
    n_layers: Few = 2
    """Number of layers."""
    cell: str = "lstm"
    """Any cell of saccade.zoo.cells: lstm, gru, layer-norm-lstm, ..."""
    dropout: tuple[BelowOne, BelowOne] = (0.3, 0.35)
    """Dropout on embeddings and on the output of each layer."""
    is_tied: bool = True
    """Tie the output weights to the embedding."""
    training: TrainConfig = WORDLM_TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class MemorylessSettings(WordSettings):
    """A hidden layer over the last few words."""

    n_context: Few = 4
    """Context length in words."""
    d_embed: Width = 100
    """Embedding dimension of a word."""
    d_hidden: Width = 256
    """Hidden size."""
    dropout: BelowOne = 0.2
    """Dropout on the hidden layer."""
    is_direct: bool = False
    """Direct connections from the embeddings to the output."""
    training: TrainConfig = MEMORYLESS_TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class TextRecipe(Recipe):
    """A model that predicts the next symbol of a text, and can generate text.

    The metric is the nats or the perplexity per symbol of the test text.
    """

    is_better: Literal["less", "more"] = "less"

    def read_corpus(self, settings: Any, data: Path | None) -> TextCorpus:
        """The text in three parts, by the recipe's task; its last tenth is for the test.

        Characters are of Shakespeare's plays, whose last tenth is the test, as in nanoGPT's split;
        words are of the books, with the last tenth of each as test.
        """
        if self.task == "tinyshakespeare":
            splits = read_tinyshakespeare(data, valid=settings.valid, test=0.1)
            return make_corpus(splits, unit="character")
        splits = read_gutenberg(data, valid=settings.valid, test=0.1)
        return make_corpus(splits, unit="word", max_size=settings.n_words)

    @torch.no_grad()
    def sample(self, run: TrainedRun, options: SampleOptions) -> str:
        """Sample symbol by symbol; without a prompt, from the beginning of a line."""
        if options.length < 0:
            raise UsageError(f"a text cannot have {options.length} symbols", hint="give 1 or more")
        check_draw(temperature=options.temperature, top_k=options.top_k or None)
        ids = encode_text(run.kept, options.prompt or "\n")
        model, chance = run.model, torch.Generator().manual_seed(options.seed)
        assert isinstance(model, LanguageModel), "only a language model generates text"
        logits, state = model(to_device_of(model, ids[None]))
        written = ids.tolist() if options.prompt else []
        log_probs = logits[:, -1].log_softmax(-1)
        for _ in range(options.length):
            log_probs[:, NEVER] = -torch.inf
            token = draw(
                log_probs.cpu(),  # where the generator is
                temperature=options.temperature,
                top_k=options.top_k or None,
                generator=chance,
            )
            written.append(int(token))
            log_probs, state = model.step(to_device_of(model, token), None, state)[:2]
        return decode_text(run.kept, written)

    def unknown_words(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[str]:
        """Characters or words of a text that the run reads as ``<unk>``."""
        known = frozenset(run.kept["words"])
        return [each for each in _units(run.kept, text) if each not in known]


@dataclass(frozen=True, kw_only=True)
class LanguageModelRecipe(TextRecipe):
    """A recurrent network that carries its state through a text: a stack of cells."""

    system: str = "rnn_language_model"

    def make_model(self, settings: Any, d_vocab: int) -> LanguageModel:
        """The untrained network."""
        return RnnLanguageModel(
            d_vocab=d_vocab,
            d_embed=settings.d_embed,
            d_hidden=settings.d_hidden,
            n_layers=settings.n_layers,
            cell=settings.cell,
            dropout=settings.dropout,
            is_tied=settings.is_tied,
        )

    def build(self, settings: LanguageModelSettings, data: Path | None) -> Job:
        """Train on contiguous streams of text."""
        corpus = self.read_corpus(settings, data)
        reading = ReadingOn(self.make_model(settings, len(corpus.vocabulary)))
        streams = min(VALID_STREAMS, max(1, len(corpus.valid) // settings.window))

        def validate(model: nn.Module) -> dict[str, float]:
            found = text_perplexity(model, corpus.valid, streams=streams, window=settings.window)
            return {"nats": found.nats, "perplexity": found.perplexity}

        return Job(
            model=reading.model,
            batches=lambda epoch: turned_batches(corpus.train, settings, epoch=epoch),
            loss=reading.loss,
            validate=validate,
            score="nats",
            is_better="less",
            config=settings.training,
            kept=kept_of(corpus),
            carried=Carried(reading.read, reading.write),
        )

    def restore(self, settings: LanguageModelSettings, kept: Mapping[str, Any]) -> LanguageModel:
        """The untrained network for the vocabulary of a run."""
        return self.make_model(settings, len(kept["words"]))

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Nats, bits and perplexity per symbol of the test text.

        With n-grams in the mixture (``ngram_share``), also the metrics of the network alone.
        """
        settings, model = run.settings, run.model
        corpus = self.read_corpus(settings, data)
        ids = as_trained(run.kept, corpus)
        sizes = {"streams": settings.test_streams, "window": settings.window}
        alone = text_perplexity(model, ids, **sizes)
        if not settings.ngram_share:
            return {"nats": alone.nats, "bits": alone.bits, "perplexity": alone.perplexity}
        assert isinstance(model, LanguageModel), type(model).__name__
        counted = NgramLanguageModel.count(
            corpus.train, order=settings.ngram_order, d_vocab=len(corpus.vocabulary)
        ).to(next(model.parameters()).device)
        both = MixedLanguageModel(model, counted, share=settings.ngram_share)
        found = text_perplexity(both, ids, **sizes)
        return {
            "nats": found.nats,
            "bits": found.bits,
            "perplexity": found.perplexity,
            "nats_alone": alone.nats,
            "perplexity_alone": alone.perplexity,
        }

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The influence of each symbol of a text on the prediction of each later one."""
        del data
        ids = encode_text(run.kept, text)
        if len(ids) < 2:
            raise UsageError(
                f"nothing can be predicted in a text of {len(ids)} symbols",
                hint="give a longer text",
            )
        labels, model = labels_of(run.kept, ids), run.model
        assert isinstance(model, RnnLanguageModel | MemorylessLanguageModel), (
            "only these have `influence_on`"
        )
        weights = model.influence_on(to_device_of(model, ids))
        return [
            Trace(
                kind="influence",
                steps=tuple(labels[1:]),
                memory=tuple(labels[:-1]),
                weights=weights.cpu(),
                title="Influence of each symbol on the prediction of each later one",
            )
        ]


@dataclass(frozen=True, kw_only=True)
class MemorylessRecipe(LanguageModelRecipe):
    """A network that sees only the last few symbols."""

    system: str = "memoryless_language_model"

    def make_model(self, settings: MemorylessSettings, d_vocab: int) -> LanguageModel:
        """The untrained network without a memory."""
        return MemorylessLanguageModel(
            d_vocab=d_vocab,
            d_embed=settings.d_embed,
            d_hidden=settings.d_hidden,
            n_context=settings.n_context,
            dropout=settings.dropout,
            is_direct=settings.is_direct,
        )


def turned_batches(
    ids: Int[Tensor, " token"], settings: LanguageModelSettings, *, epoch: int
) -> list[TextBatch]:
    """The windows of a text that is rotated by a random offset in every epoch.

    Otherwise the same symbols would always start a window, with little context.
    """
    chance = generator_of(settings.training.seed, epoch)
    begin = int(torch.randint(len(ids), (), generator=chance)) if epoch else 0
    # A list, so that the schedule knows how many there are; they are views of one tensor.
    return list(stream_batches(ids.roll(-begin), batch=settings.streams, window=settings.window))


class ReadingOn:
    """A loss that carries the state from batch to batch; gradients stop between batches."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.state: Any = None

    def loss(self, model: nn.Module, batch: TextBatch) -> LossOut:
        """Mean loss in nats a symbol."""
        predicted = model(batch.inputs, None if batch.is_first else self.state)
        self.state = detach(predicted.state)
        found = token_loss(predicted.logits, batch.targets, batch.mask)
        return LossOut(found.loss, found.n_tokens)

    def read(self) -> Mapping[str, Tensor]:
        """The tensors of the state."""
        return {str(place): tensor for place, tensor in enumerate(tensors_of(self.state))}

    def write(self, held: Mapping[str, Tensor]) -> None:
        """Put back what `read` gave."""
        if not held:
            self.state = None
            return
        tensors = iter([held[str(place)] for place in range(len(held))])
        self.state = map_tensors(lambda _: next(tensors), self.model.begin(1))


def text_perplexity(
    model: nn.Module, ids: Int[Tensor, " token"], *, streams: int, window: int
) -> Perplexity:
    """Log-probability of each symbol of a text, given all those before it in its stream."""
    nll, n_tokens, state = 0.0, 0, None
    for batch in stream_batches(ids, batch=streams, window=window):
        here: TextBatch = to_device_of(model, batch)
        predicted = model(here.inputs, state)
        state = predicted.state
        found = token_loss(predicted.logits, here.targets, here.mask)
        nll, n_tokens = nll + found.nll.item(), n_tokens + found.n_tokens
    return perplexity(nll, n_tokens)


# Between a user's text and the symbols of a run.


def kept_of(corpus: TextCorpus) -> dict[str, Any]:
    """The vocabulary, as a run stores it."""
    return {"words": list(corpus.vocabulary.words), "unit": corpus.unit}


def as_trained(kept: Mapping[str, Any], corpus: TextCorpus) -> Int[Tensor, " token"]:
    """The test text; refused if its encoding differs from the run's."""
    if list(kept["words"]) != list(corpus.vocabulary.words):
        raise UsageError(
            "the run was trained on another text: its symbols are not those of this one",
            hint="--data names the folder that it was trained with",
        )
    return corpus.test


def encode_text(kept: Mapping[str, Any], text: str) -> Int[Tensor, " pos"]:
    """The ids of a user's text."""
    vocabulary = Vocabulary(tuple(kept["words"]))
    return torch.tensor(vocabulary.encode(_units(kept, text)), dtype=torch.long)


def _units(kept: Mapping[str, Any], text: str) -> list[str]:
    unit: Unit = kept["unit"]
    spaced = "\n".join(" ".join(split_words(line)) for line in text.split("\n"))
    units = split_units(text if unit == "character" else spaced, unit)
    is_open = unit == "word" and not text.endswith("\n")
    return units[:-1] if is_open else units


def decode_text(kept: Mapping[str, Any], ids: list[int]) -> str:
    """The text of generated symbols."""
    words = [kept["words"][each] for each in ids]
    if kept["unit"] == "character":
        return "".join(words)
    lines: list[list[str]] = [[]]
    for each, word in zip(ids, words, strict=True):
        if each == EOS:
            lines.append([])
        else:
            lines[-1].append(word)
    return "\n".join(map(join_words, lines))


def labels_of(kept: Mapping[str, Any], ids: Int[Tensor, " pos"]) -> list[str]:
    """The axis label of each symbol; spaces and line feeds are made visible."""
    seen = {"\n": "\\n", " ": "_"}
    words: list[str] = [kept["words"][each] for each in ids.tolist()]
    return [seen.get(word, word) for word in words]


RECIPES = (
    LanguageModelRecipe(
        name="charlm-shakespeare",
        about="Generates Shakespeare character by character with an LSTM.",
        task="tinyshakespeare",
        metric="nats",
        other_metrics={"nats_alone": None},
        settings=CharlmSettings(),
        target=1.48,
        published=1.4697,
        source="https://github.com/karpathy/nanoGPT (a Transformer of 10.7 million weights)",
        note="Ours is an LSTM that carries its state through the whole test text, mixed with "
        "n-grams of the training text at a fixed weight, as in Mikolov et al., 2010; "
        "`nats_alone` is of the network alone. nanoGPT's Transformer sees at most 256 "
        "characters, and its number is the best on the test text itself.",
        minutes=43.0,
    ),
    LanguageModelRecipe(
        name="wordlm",
        about="Generates books word by word with an LSTM.",
        task="gutenberg",
        metric="perplexity",
        settings=WordlmSettings(),
        note=WORDLM_NOTE,
        minutes=44.0,
    ),
    MemorylessRecipe(
        name="wordlm-memoryless",
        about="Generates books from the last four words: Bengio's neural language model.",
        task="gutenberg",
        metric="perplexity",
        settings=MemorylessSettings(),
        note=WORDLM_NOTE,
        minutes=32.0,
    ),
)
