"""Recipes `charlm-*` and `wordlm*`: networks that predict the next character or word of a text.

- `charlm-shakespeare`: an LSTM over the characters of Shakespeare's plays, beside nanoGPT's
  Transformer (https://github.com/karpathy/nanoGPT) on the same test text, with n-grams of the
  training text beside the network at a fixed share, as in Mikolov et al., 2010 ("Recurrent neural
  network based language model").
- `wordlm`: an LSTM over the words of 16 books. The Penn Treebank's text, which published numbers
  are of, cannot be had freely.
- `wordlm-memoryless`: the same words from the last four alone, after Bengio et al., 2003 ("A neural
  probabilistic language model").

`TextRecipe` is what these share with the n-gram models of `saccade.zoo.recipes.ngrams`.
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

NEVER = [PAD, BOS]  # symbols that no text holds
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
    "The Penn Treebank's text, which published metrics are of, cannot be had freely; "
    "`ngram-words` stands beside this one on the same words."
)


@dataclass(frozen=True, kw_only=True)
class LanguageModelSettings:
    """What can be set about any neural language model; a recipe's own settings inherit from it."""

    valid: Part = 0.05
    """Share of the text that is held out to choose the best weights by."""
    streams: Many = 32
    """The text is cut into so many streams, which are read side by side."""
    window: Many = 128
    """Symbols of a stream that are read at once; gradients go no further back."""
    test_streams: Many = 4
    """The same for the test text: few, because each begins without a past."""
    ngram_share: Share = 0.0
    """How much n-grams of the training text have to say in the metrics, beside the network."""
    ngram_order: Few = 5
    """The longest of these n-grams."""
    training: TrainConfig = field(default_factory=TrainConfig)
    """How it is trained."""


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
    """How much n-grams have to say in the metrics, beside the network; Mikolov et al.'s share."""
    ngram_order: Few = 7
    """The longest of these n-grams; those of `ngram-characters`."""
    training: TrainConfig = CHARLM_TRAINING
    """How it is trained."""


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
    training: TrainConfig = WORDLM_TRAINING
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


@dataclass(frozen=True, kw_only=True)
class TextRecipe(Recipe):
    """A model that predicts the next symbol of a text, so that it can write one, too.

    The metric is nats or perplexity of a symbol of the test text.
    """

    is_better: Literal["less", "more"] = "less"

    def read_corpus(self, settings: Any, data: Path | None) -> TextCorpus:
        """The text in three parts, by the recipe's task; its last tenth is for the test.

        Characters are of Shakespeare's plays, whose last tenth is the test as nanoGPT cuts them;
        words are of the books, of each of which the last tenth is.
        """
        if self.task == "tinyshakespeare":
            splits = read_tinyshakespeare(data, valid=settings.valid, test=0.1)
            return make_corpus(splits, unit="character")
        splits = read_gutenberg(data, valid=settings.valid, test=0.1)
        return make_corpus(splits, unit="word", max_size=settings.n_words)

    @torch.no_grad()
    def sample(self, run: TrainedRun, options: SampleOptions) -> str:
        """Draw symbol after symbol; without a prompt, as at the beginning of a line."""
        if options.length < 0:
            raise UsageError(f"a text cannot have {options.length} symbols", hint="give 1 or more")
        check_draw(temperature=options.temperature, top_k=options.top_k or None)
        ids = encode_text(run.kept, options.prompt or "\n")
        model, chance = run.model, torch.Generator().manual_seed(options.seed)
        assert isinstance(model, LanguageModel), "only a language model writes text"
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
    """A network that reads a text on and on: a stack of cells."""

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
        """Learn to read a text on and on."""
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
        """Nats, bits and perplexity of a symbol of the test text.

        With n-grams beside the network (``ngram_share``), the metrics of the network alone, too.
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
        """How much each symbol of a text counts for the prediction of each that follows."""
        del data
        ids = encode_text(run.kept, text)
        if len(ids) < 2:
            raise UsageError(
                f"nothing can be predicted in a text of {len(ids)} symbols",
                hint="give a longer text",
            )
        labels, model = labels_of(run.kept, ids), run.model
        assert isinstance(model, RnnLanguageModel | MemorylessLanguageModel), "these tell it"
        weights = model.influence_on(to_device_of(model, ids))
        return [
            Trace(
                kind="influence",
                steps=tuple(labels[1:]),
                memory=tuple(labels[:-1]),
                weights=weights.cpu(),
                title="How much each symbol counts for the prediction of each that follows",
            )
        ]


@dataclass(frozen=True, kw_only=True)
class MemorylessRecipe(LanguageModelRecipe):
    """A network that sees the last few symbols only."""

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
    """The windows of a text that begins elsewhere in every epoch, as if its ends were joined.

    Otherwise the same few symbols would begin a window, without much of a past, every time.
    """
    chance = generator_of(settings.training.seed, epoch)
    begin = int(torch.randint(len(ids), (), generator=chance)) if epoch else 0
    # A list, so that the schedule knows how many there are; they are views of one tensor.
    return list(stream_batches(ids.roll(-begin), batch=settings.streams, window=settings.window))


class ReadingOn:
    """A loss that goes on where the last batch ended; gradients stop between batches."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.state: Any = None

    def loss(self, model: nn.Module, batch: TextBatch) -> LossOut:
        """Mean nats a symbol."""
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
    """Of a text, each symbol after all those before it in its stream."""
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
    """What a run must keep to read and write text."""
    return {"words": list(corpus.vocabulary.words), "unit": corpus.unit}


def as_trained(kept: Mapping[str, Any], corpus: TextCorpus) -> Int[Tensor, " token"]:
    """The test text, refused if it was encoded otherwise than a run's own."""
    if list(kept["words"]) != list(corpus.vocabulary.words):
        raise UsageError(
            "the run was trained on another text: its symbols are not those of this one",
            hint="--data names the folder that it was trained with",
        )
    return corpus.test


def encode_text(kept: Mapping[str, Any], text: str) -> Int[Tensor, " pos"]:
    """A text of the user's as a run reads it."""
    vocabulary = Vocabulary(tuple(kept["words"]))
    return torch.tensor(vocabulary.encode(_units(kept, text)), dtype=torch.long)


def _units(kept: Mapping[str, Any], text: str) -> list[str]:
    unit: Unit = kept["unit"]
    spaced = "\n".join(" ".join(split_words(line)) for line in text.split("\n"))
    units = split_units(text if unit == "character" else spaced, unit)
    is_open = unit == "word" and not text.endswith("\n")
    return units[:-1] if is_open else units


def decode_text(kept: Mapping[str, Any], ids: list[int]) -> str:
    """What a run has written, as a reader would have it."""
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
    """How each symbol is written on an axis, where a space or a line feed would not be seen."""
    seen = {"\n": "\\n", " ": "_"}
    words: list[str] = [kept["words"][each] for each in ids.tolist()]
    return [seen.get(word, word) for word in words]


RECIPES = (
    LanguageModelRecipe(
        name="charlm-shakespeare",
        about="Writes Shakespeare character by character: an LSTM that reads on and on.",
        task="tinyshakespeare",
        metric="nats",
        beside={"nats_alone": None},
        settings=CharlmSettings(),
        at_least=1.48,
        published=1.4697,
        source="https://github.com/karpathy/nanoGPT (a Transformer of 10.7 million weights)",
        note="Ours is an LSTM that carries its state through the whole test text, with n-grams of "
        "the training text beside it at a fixed share, as in Mikolov et al., 2010; "
        "`nats_alone` is the network's. nanoGPT's Transformer sees at most 256 characters, and its "
        "figure is the best of the test text itself.",
        minutes=43.0,
    ),
    LanguageModelRecipe(
        name="wordlm",
        about="Writes books word by word: an LSTM that reads on and on.",
        task="gutenberg",
        metric="perplexity",
        settings=WordlmSettings(),
        note=WORDLM_NOTE,
        minutes=44.0,
    ),
    MemorylessRecipe(
        name="wordlm-memoryless",
        about="Writes books from the last four words alone: Bengio's neural language model.",
        task="gutenberg",
        metric="perplexity",
        settings=MemorylessSettings(),
        note=WORDLM_NOTE,
        minutes=32.0,
    ),
)
