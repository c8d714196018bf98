"""Training, judging and watching a recogniser of handwritten words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.decoding.ctc_search import ctc_greedy, prefix_beam
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.metrics.sequence_metrics import edit_rate, exact_match
from saccade.zoo.models.ctc_recogniser import CtcRecogniser
from saccade.zoo.models.ngram import NgramLanguageModel
from saccade.zoo.recipes.ctc_words import CtcWordSettings
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.options import Translated, TranslateOptions
from saccade.zoo.recipes.transcribing import ctc_of, lattice_traces, recogniser_loss
from saccade.zoo.tasks.pen_words import (
    D_FRAME,
    PenBatches,
    PenWords,
    pen_words,
    read_pen_file,
    read_pen_words,
)
from saccade.zoo.tasks.speech import Frames
from saccade.zoo.tasks.tokenizers import CharacterCoder, coder_from_json
from saccade.zoo.tasks.vocabulary import BOS, EOS
from saccade.zoo.training.job import Job

Search = Callable[[Frames], list[Hypothesis]]
"""From what is said at each step to the text of each word."""
TOGETHER = 128  # words that are judged at once


def words_job(settings: CtcWordSettings, data: Path | None) -> Job:
    """Words of many hands, changed a little in every epoch."""
    splits = read_pen_words(data)
    coder = CharacterCoder.build(splits.train.labels)
    seed = settings.training.seed

    def batches(epoch: int) -> PenBatches:
        words, warp = splits.train, settings.warp
        return PenBatches(words, coder, batch=settings.batch, warp=warp, seed=seed, epoch=epoch)

    def validate(model: nn.Module) -> dict[str, float]:
        return _figures(_written(model, splits.valid, coder, search=by_best_path), splits.valid)

    return Job(
        model=make_model(settings, coder),
        batches=batches,
        loss=recogniser_loss,
        validate=validate,
        score="error",
        is_better="less",
        config=settings.training,
        kept={"coder": coder.to_json(), "words": dict(Counter(splits.train.labels))},
    )


def make_model(settings: CtcWordSettings, coder: CharacterCoder) -> CtcRecogniser:
    """The untrained model."""
    return CtcRecogniser(
        d_frame=D_FRAME,
        n_symbols=len(coder),
        d_hidden=settings.d_hidden,
        n_layers=settings.n_layers,
        strides=settings.strides,
        dropout=settings.dropout,
    )


def coder_of(kept: Mapping[str, Any]) -> CharacterCoder:
    """The letters that a run knows."""
    coder = coder_from_json(kept["coder"], "the run's alphabet")
    assert isinstance(coder, CharacterCoder), f"no letters but {type(coder).__name__}"
    return coder


def spelling_model(
    counts: Mapping[str, int], coder: CharacterCoder, *, order: int
) -> NgramLanguageModel:
    """How letters follow each other in words, each counted as often as it was written."""
    words = chain.from_iterable([coder.encode(word)] * n for word, n in sorted(counts.items()))
    stream = chain.from_iterable([BOS, *word, EOS] for word in words)
    return NgramLanguageModel.count(torch.tensor(list(stream)), order=order, d_vocab=len(coder))


def evaluate_words(run: OpenRun, data: Path | None) -> dict[str, float]:
    """Figures on words of new persons, with the language model and without."""
    test, coder = read_pen_words(data).test, coder_of(run.kept)
    search = searching(run, beam=run.settings.beam)
    by_path = _figures(_written(run.model, test, coder, search=by_best_path), test)
    searched = _figures(_written(run.model, test, coder, search=search), test)
    return {**searched, **{f"{name}_by_path": value for name, value in by_path.items()}}


def by_best_path(said: Frames) -> list[Hypothesis]:
    """The text of the likeliest path of each word."""
    return ctc_greedy(*said)


def searching(run: OpenRun, *, beam: int) -> Search:
    """Prefix beam search with the run's language model; with a beam of one the likeliest path."""
    if beam == 1:
        return by_best_path
    settings = run.settings
    model = spelling_model(run.kept["words"], coder_of(run.kept), order=settings.order)

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


def trace_word(run: OpenRun, text: str) -> list[Trace]:
    """Where each letter is seen: the lattice, and what each step says."""
    coder = coder_of(run.kept)
    said = _said(run, text)
    (found,) = searching(run, beam=run.settings.beam)(said)
    labels = tuple(map(str, range(said.mask.shape[1])))
    return lattice_traces(said, found, coder, labels=labels)


def write_down(run: OpenRun, texts: Sequence[str], options: TranslateOptions) -> list[Translated]:
    """The word in each file of strokes, or of each test word by its number."""
    coder, search = coder_of(run.kept), searching(run, beam=options.beam)
    found = [search(_said(run, text))[0] for text in texts]
    return [Translated(coder.decode(each.ids), each.log_prob) for each in found]


def _said(run: OpenRun, text: str) -> Frames:
    """What the recogniser says of the word that a user means."""
    coder, text = coder_of(run.kept), text.strip()
    if text.isdecimal():
        words, number = read_pen_words().test, int(text)
        if number >= len(words):
            raise UsageError(
                f"expected the number of a test word, 0 to {len(words) - 1}, got {number}",
                hint="for example 0",
            )
    elif Path(text).is_file():
        words, number = pen_words([""], [read_pen_file(text)]), 0
    else:
        raise UsageError(
            f"expected the number of a test word or a JSON file with strokes, got {text!r}",
            hint="for example 0, or word.json with [[[x, y], ...], ...]",
        )
    alone = PenBatches(words.one(number), coder, batch=1)[0]
    return ctc_of(run.model)(*alone.source)


def _written(
    model: nn.Module, words: PenWords, coder: CharacterCoder, *, search: Search
) -> list[str]:
    """The text of each word."""
    batches, found = PenBatches(words, coder, batch=TOGETHER), {}
    for number, batch in enumerate(batches):
        written = [coder.decode(each.ids) for each in search(ctc_of(model)(*batch.source))]
        found.update(zip(batches.rows(number).tolist(), written, strict=True))
    return [found[row] for row in range(len(words))]


def _figures(written: Sequence[str], words: PenWords) -> dict[str, float]:
    """``error``: per cent of characters; ``words``: per cent of words without any."""
    return {
        "error": 100 * edit_rate(written, words.labels).rate,
        "words": 100 * exact_match(written, words.labels).rate,
    }
