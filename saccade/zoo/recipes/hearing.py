"""Training, judging and watching a recogniser of spoken digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ctc_search import ctc_greedy, prefix_beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.metrics.sequence_metrics import edit_rate, exact_match
from saccade.zoo.models.ctc_recogniser import CtcRecogniser
from saccade.zoo.recipes.digit_settings import DigitSettings
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.options import Translated, TranslateOptions
from saccade.zoo.recipes.sounds import read_sound
from saccade.zoo.recipes.transcribing import lattice_traces, recogniser_loss, speller_of
from saccade.zoo.tasks.speech import HOP, FrameBatch, Frames
from saccade.zoo.tasks.spoken_digits import (
    TEST_SEED,
    VALID_SEED,
    JoinedDigits,
    Joining,
    Recordings,
    at_speeds,
    read_spoken_digits,
    split_recordings,
)
from saccade.zoo.tasks.tokenizers import CharacterCoder
from saccade.zoo.tasks.vocabulary import EOS
from saccade.zoo.training.job import Job

DIGITS = CharacterCoder.build(["0123456789"])
N_SYMBOLS, N_BANDS = len(DIGITS), 40
EPOCH = 250  # batches between two looks at the data's end, which it does not have
TOGETHER = 100  # sequences that are judged at once
LONGEST = 20  # symbols that a speller may say


def digits_job(
    settings: DigitSettings, data: Path | None, *, model: nn.Module, smoothing: float = 0.0
) -> Job:
    """New sequences at every step, out of the recordings of the split."""
    splits = split_recordings(read_spoken_digits(data), speaker=settings.speaker)
    training = Joining(
        shortest=settings.shortest,
        longest=settings.longest,
        pause=settings.pause,
        noise=(settings.loudest, settings.quietest),
    )
    voices = at_speeds(splits.train, settings.speeds)
    valid = list(_held_out(splits.valid, settings, n=settings.n_valid, seed=VALID_SEED))
    return Job(
        model=model,
        batches=lambda epoch: JoinedDigits(
            voices,
            training,
            ids=digit_ids(),
            batch=settings.batch,
            n_batches=EPOCH,
            seed=settings.training.seed,
            epoch=epoch,
        ),
        loss=lambda model, batch: recogniser_loss(model, batch, smoothing=smoothing),
        validate=lambda model: figures_of(model, valid),
        score="error",
        is_better="less",
        config=settings.training,
    )


def digit_ids() -> torch.Tensor:
    """The id of each digit, 0 to 9."""
    return torch.tensor([DIGITS.encode(str(digit))[0] for digit in range(10)])


def figures_of(
    model: nn.Module, batches: Sequence[FrameBatch], *, beam_size: int = 1
) -> dict[str, float]:
    """``error``: per cent of digits; ``sequences``: per cent of sequences without any."""
    options = TranslateOptions(beam=beam_size, length_penalty=0.0, max_length=LONGEST)
    said, right = [], []
    for batch in batches:
        said += [DIGITS.decode(found.ids) for found in recognise(model, batch.source, options)]
        right += [DIGITS.decode(row) for row in batch.text.tolist()]
    return {
        "error": 100 * edit_rate(said, right).rate,
        "sequences": 100 * exact_match(said, right).rate,
    }


def recognise(model: nn.Module, source: Frames, options: TranslateOptions) -> list[Hypothesis]:
    """What is said in each recording."""
    if isinstance(model, CtcRecogniser):
        said = model(*source)
        if options.beam == 1:
            return ctc_greedy(*said)
        return [found[0] for found in prefix_beam(*said, size=options.beam)]
    speller = speller_of(model)
    if options.beam == 1:
        return greedy(speller, source, max_length=options.max_length)
    found = beam(
        speller,
        source,
        size=options.beam,
        max_length=options.max_length,
        length_penalty=options.length_penalty,
    )
    return found.best


def evaluate_digits(run: OpenRun, data: Path | None) -> dict[str, float]:
    """Figures on held-out recordings, by the best path or symbol and by a beam of eight."""
    settings = run.settings
    test = split_recordings(read_spoken_digits(data), speaker=settings.speaker).test
    batches = list(_held_out(test, settings, n=settings.n_test, seed=TEST_SEED))
    searched = figures_of(run.model, batches, beam_size=8)
    return {**figures_of(run.model, batches), "error_by_beam": searched["error"]}


def trace_digits(run: OpenRun, text: str) -> list[Trace]:
    """Where each digit is heard: a lattice and what steps say, or attention."""
    source, model = read_sound(run.settings, text), run.model
    options = TranslateOptions(beam=1, max_length=LONGEST)
    (found,) = recognise(model, source, options)
    if isinstance(model, CtcRecogniser):
        said = model(*source)
        labels = _seconds(said.mask.shape[1], stride=math.prod(model.strides))
        return lattice_traces(said, found, DIGITS, labels=labels)
    assert found.weights is not None, "a speller tells its weights"
    return [
        Trace(
            kind="attention",
            steps=tuple(DIGITS.labels([*found.ids, EOS])[: len(found.weights)]),
            memory=_seconds(found.weights.shape[1], stride=2**run.settings.n_layers),
            weights=found.weights,
            title=DIGITS.decode(found.ids),
            meta={"input": text, "log_prob": found.log_prob},
        )
    ]


def write_down(run: OpenRun, texts: Sequence[str], options: TranslateOptions) -> list[Translated]:
    """The digits in each sound."""
    found = [recognise(run.model, read_sound(run.settings, text), options)[0] for text in texts]
    return [Translated(DIGITS.decode(each.ids), each.log_prob) for each in found]


def _held_out(
    recordings: Recordings, settings: DigitSettings, *, n: int, seed: int
) -> JoinedDigits:
    """Sequences that are always the same, at their own speed."""
    joining = Joining(
        shortest=settings.shortest,
        longest=settings.longest,
        pause=settings.pause,
        noise=(settings.quietest, settings.quietest),
    )
    batch = min(n, TOGETHER)
    n_batches = max(1, n // batch)
    return JoinedDigits(
        recordings, joining, ids=digit_ids(), batch=batch, n_batches=n_batches, seed=seed
    )


def _seconds(n: int, *, stride: int) -> tuple[str, ...]:
    """When each step begins."""
    return tuple(f"{step * stride * HOP:.2f}" for step in range(n))
