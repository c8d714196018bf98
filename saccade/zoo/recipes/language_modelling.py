"""Training, evaluating, sampling and watching any language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from saccade.zoo.recipes.language_model import LanguageModelSettings, MakeModel
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.options import SampleOptions
from saccade.zoo.tasks.curricula import generator_of
from saccade.zoo.tasks.text import (
    TextBatch,
    TextCorpus,
    Unit,
    join_words,
    split_units,
    split_words,
    stream_batches,
)
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD, Vocabulary
from saccade.zoo.training.job import Carried, Job, LossOut, moved

NEVER = [PAD, BOS]  # symbols that no text holds
VALID_STREAMS = 32


def language_model_job(
    settings: LanguageModelSettings, corpus: TextCorpus, *, make_model: MakeModel
) -> Job:
    """Learn to read a text on and on."""
    reading = ReadingOn(make_model(settings, len(corpus.vocabulary)))
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
    device = next(model.parameters()).device
    for batch in stream_batches(ids, batch=streams, window=window):
        here: TextBatch = moved(batch, device)
        predicted = model(here.inputs, state)
        state = predicted.state
        found = token_loss(predicted.logits, here.targets, here.mask)
        nll, n_tokens = nll + found.nll.item(), n_tokens + found.n_tokens
    return perplexity(nll, n_tokens)


def evaluate_language_model(run: OpenRun, corpus: TextCorpus) -> dict[str, float]:
    """Nats, bits and perplexity of a symbol of the test text.

    With n-grams beside the network (``ngram_share``), what it reaches alone is told, too.
    """
    settings = run.settings
    ids = as_trained(run.kept, corpus)
    sizes = {"streams": settings.test_streams, "window": settings.window}
    alone = text_perplexity(run.model, ids, **sizes)
    if not settings.ngram_share:
        return {"nats": alone.nats, "bits": alone.bits, "perplexity": alone.perplexity}
    assert isinstance(run.model, LanguageModel), type(run.model).__name__
    counted = NgramLanguageModel.count(
        corpus.train, order=settings.ngram_order, d_vocab=len(corpus.vocabulary)
    )
    both = MixedLanguageModel(run.model, counted, share=settings.ngram_share)
    found = text_perplexity(both, ids, **sizes)
    return {
        "nats": found.nats,
        "bits": found.bits,
        "perplexity": found.perplexity,
        "nats_alone": alone.nats,
        "perplexity_alone": alone.perplexity,
    }


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


def unknown_units(run: OpenRun, text: str) -> list[str]:
    """Characters or words of a text that the run reads as ``<unk>``."""
    known = frozenset(run.kept["words"])
    return [each for each in _units(run.kept, text) if each not in known]


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


@torch.no_grad()
def sample_text(run: OpenRun, options: SampleOptions) -> str:
    """Draw symbol after symbol; without a prompt, as at the beginning of a line."""
    if options.length < 0:
        raise UsageError(f"a text cannot have {options.length} symbols", hint="give 1 or more")
    check_draw(temperature=options.temperature, top_k=options.top_k or None)
    ids = encode_text(run.kept, options.prompt or "\n")
    model, chance = run.model, torch.Generator().manual_seed(options.seed)
    assert isinstance(model, LanguageModel), "only a language model writes text"
    logits, state = model(ids[None])
    written = ids.tolist() if options.prompt else []
    log_probs = logits[:, -1].log_softmax(-1)
    for _ in range(options.length):
        log_probs[:, NEVER] = -torch.inf
        token = draw(
            log_probs,
            temperature=options.temperature,
            top_k=options.top_k or None,
            generator=chance,
        )
        written.append(int(token))
        log_probs, state = model.step(token, None, state)[:2]
    return decode_text(run.kept, written)


def trace_influence(run: OpenRun, text: str) -> list[Trace]:
    """How much each symbol of a text counts for the prediction of each that follows."""
    ids = encode_text(run.kept, text)
    if len(ids) < 2:
        raise UsageError(
            f"nothing can be predicted in a text of {len(ids)} symbols", hint="give a longer text"
        )
    labels, model = labels_of(run.kept, ids), run.model
    assert isinstance(model, RnnLanguageModel | MemorylessLanguageModel), "these tell it"
    weights = model.influence_on(ids)
    return [
        Trace(
            kind="influence",
            steps=tuple(labels[1:]),
            memory=tuple(labels[:-1]),
            weights=weights,
            title="How much each symbol counts for the prediction of each that follows",
        )
    ]


def labels_of(kept: Mapping[str, Any], ids: Int[Tensor, " pos"]) -> list[str]:
    """How each symbol is written on an axis, where a space or a line feed would not be seen."""
    seen = {"\n": "\\n", " ": "_"}
    words: list[str] = [kept["words"][each] for each in ids.tolist()]
    return [seen.get(word, word) for word in words]
