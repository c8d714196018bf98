"""The recipe `ctc-words`: handwritten words of unseen writers, by CTC.

Graves et al., 2009 ("A novel connectionist system for unconstrained handwriting recognition").

Where we differ: they read lines of another data set (IAM-OnDB), we read words of UNIPEN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.decoding.ctc_search import ctc_greedy, prefix_beam
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.metrics.sequence_metrics import edit_rate, exact_match
from saccade.zoo.models.ctc_recogniser import CtcRecogniser
from saccade.zoo.models.ngram import NgramLanguageModel
from saccade.zoo.recipes.ctc_alignment import lattice_traces, log_probs_of, recogniser_loss
from saccade.zoo.recipes.recipe import InputFile, Recipe, Translated, TranslateOptions
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.pen_words import (
    D_FRAME,
    PenBatches,
    PenWords,
    parse_strokes,
    pen_words,
    read_pen_words,
)
from saccade.zoo.tasks.speech import Frames
from saccade.zoo.tasks.tokenizers import CharacterTokenizer, tokenizer_from_json
from saccade.zoo.tasks.vocabulary import BOS, EOS
from saccade.zoo.training.job import Job
from saccade.zoo.training.settings import (
    Batch,
    BelowOne,
    Few,
    Fews,
    NonNegative,
    TrainConfig,
    Width,
)

Search = Callable[[Frames], list[Hypothesis]]
"""From log-probabilities at each step to the text of each word."""
TOGETHER = 128  # words that are evaluated at once

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
    """The recogniser's sizes, data augmentation and search options."""

    d_hidden: Width = 160
    """Units of each LSTM, in each direction."""
    n_layers: Few = 2
    """Number of bidirectional LSTM layers."""
    strides: Fews = (2, 2)
    """Stride of each convolution; a letter has about fifteen points."""
    dropout: BelowOne = 0.3
    """Dropout between layers and before the output."""
    warp: NonNegative = 1.0
    """Data augmentation by slant, stretch and rotation; 1: about the variation between writers."""
    batch: Batch = 64
    """Words in a batch."""
    beam: Few = 16
    """Beam size of prefix beam search."""
    order: Few = 6
    """Order of the letter n-gram language model of the training words."""
    weight: NonNegative = 0.5
    """Weight of the language model."""
    bonus: float = 1.0
    """Bonus for each letter, in nats."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class CtcWordRecipe(Recipe):
    """A CTC recogniser of pen strokes, decoded with n-grams of the letters of training words."""

    reads_files = True

    system: str = "ctc_recogniser"
    task: str = "pen_words"
    metric: str = "error"
    is_better: Literal["less", "more"] = "less"
    may_differ: frozenset[str] = frozenset({"beam", "order", "weight", "bonus"})
    gallery: tuple[str, ...] = ("0", "1")

    def build(self, settings: CtcWordSettings, data: Path | None) -> Job:
        """Words of many writers, distorted differently in every epoch."""
        splits = read_pen_words(data)
        tokenizer = CharacterTokenizer.build(splits.train.labels)
        seed = settings.training.seed
        kept = {"tokenizer": tokenizer.to_json(), "words": dict(Counter(splits.train.labels))}

        def batches(epoch: int) -> PenBatches:
            words, warp = splits.train, settings.warp
            return PenBatches(
                words, tokenizer, batch=settings.batch, warp=warp, seed=seed, epoch=epoch
            )

        return Job(
            model=self.restore(settings, kept),
            batches=batches,
            loss=recogniser_loss,
            validate=lambda model: _metrics(model, splits.valid, tokenizer, search=_by_best_path),
            score="error",
            is_better="less",
            config=settings.training,
            kept=kept,
        )

    def restore(self, settings: CtcWordSettings, kept: Mapping[str, Any]) -> CtcRecogniser:
        """The untrained model."""
        return CtcRecogniser(
            d_frame=D_FRAME,
            n_symbols=len(_tokenizer(kept)),
            d_hidden=settings.d_hidden,
            n_layers=settings.n_layers,
            strides=settings.strides,
            dropout=settings.dropout,
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Metrics on words of unseen writers, with the language model and without."""
        test, tokenizer = read_pen_words(data).test, _tokenizer(run.kept)
        search = _search(run, beam=run.settings.beam)
        by_path = _metrics(run.model, test, tokenizer, search=_by_best_path)
        searched = _metrics(run.model, test, tokenizer, search=search)
        return {**searched, **{f"{name}_by_path": value for name, value in by_path.items()}}

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """Where each letter is recognised: the lattice, and the outputs of each step."""
        said = _said(run, text, data=data)
        (found,) = _search(run, beam=run.settings.beam)(said)
        labels = tuple(map(str, range(said.mask.shape[1])))
        return lattice_traces(said, found, _tokenizer(run.kept), labels=labels)

    def translate(
        self,
        run: TrainedRun,
        texts: Sequence[str],
        options: TranslateOptions,
        *,
        data: Path | None = None,
    ) -> list[Translated]:
        """The word in each file of strokes, or of each test word by its number."""
        tokenizer, search = _tokenizer(run.kept), _search(run, beam=options.beam)
        found = [search(_said(run, text, data=data))[0] for text in texts]
        return [Translated(tokenizer.decode(each.ids), each.log_prob) for each in found]


def spelling_model(
    counts: Mapping[str, int], tokenizer: CharacterTokenizer, *, order: int
) -> NgramLanguageModel:
    """Letter n-grams of the words, each counted as often as it occurs."""
    words = chain.from_iterable([tokenizer.encode(word)] * n for word, n in sorted(counts.items()))
    stream = chain.from_iterable([BOS, *word, EOS] for word in words)
    return NgramLanguageModel.count(torch.tensor(list(stream)), order=order, d_vocab=len(tokenizer))


def _tokenizer(kept: Mapping[str, Any]) -> CharacterTokenizer:
    """The character tokenizer of a run."""
    tokenizer = tokenizer_from_json(kept["tokenizer"], "the run's alphabet")
    assert isinstance(tokenizer, CharacterTokenizer), f"no letters but {type(tokenizer).__name__}"
    return tokenizer


def _by_best_path(said: Frames) -> list[Hypothesis]:
    """The text of the most likely path of each word."""
    return ctc_greedy(*said)


def _search(run: TrainedRun, *, beam: int) -> Search:
    """Prefix beam search with the run's language model; with a beam of one the most likely path."""
    if beam == 1:
        return _by_best_path
    settings = run.settings
    model = spelling_model(run.kept["words"], _tokenizer(run.kept), order=settings.order)

    def search(said: Frames) -> list[Hypothesis]:
        found = prefix_beam(
            *said,
            size=beam,
            language_model=model,
            weight=settings.weight,
            bonus=settings.bonus,
        )
        return [texts[0] for texts in found]

    return search


def _said(run: TrainedRun, text: str, *, data: Path | None = None) -> Frames:
    """Log-probabilities for the word that a user names."""
    tokenizer = _tokenizer(run.kept)
    if isinstance(text, InputFile):
        words, number = pen_words([""], [parse_strokes(text.data, text)]), 0
    elif text.strip().isdecimal():
        words, number = read_pen_words(data).test, int(text)
        if number >= len(words):
            raise UsageError(
                f"expected the number of a test word, 0 to {len(words) - 1}, got {number}",
                hint="for example 0",
            )
    else:
        raise UsageError(
            f"expected the number of a test word or a JSON file with strokes, got {text!r}",
            hint="for example 0, or word.json with [[[x, y], ...], ...]",
        )
    alone = PenBatches(words.one(number), tokenizer, batch=1)[0]
    return log_probs_of(run.model, alone.source)


def _metrics(
    model: nn.Module, words: PenWords, tokenizer: CharacterTokenizer, *, search: Search
) -> dict[str, float]:
    """``error``: percentage of characters; ``words``: percentage of words without any."""
    batches, found = PenBatches(words, tokenizer, batch=TOGETHER), {}
    for number, batch in enumerate(batches):
        texts = [tokenizer.decode(each.ids) for each in search(log_probs_of(model, batch.source))]
        found.update(zip(batches.rows(number).tolist(), texts, strict=True))
    written = [found[row] for row in range(len(words))]
    return {
        "error": 100 * edit_rate(written, words.labels).rate,
        "words": 100 * exact_match(written, words.labels).rate,
    }


RECIPES = (
    CtcWordRecipe(
        name="ctc-words",
        settings=CtcWordSettings(),
        about="Recognises handwritten words of unseen writers from pen strokes.",
        target=15.0,
        note="Per cent of characters, by prefix beam search with letters' n-grams of the training "
        "words. Graves et al., 2009, read lines of another data set (IAM-OnDB).",
        minutes=40.0,
    ),
)
