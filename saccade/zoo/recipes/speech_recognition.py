"""Recipes `ctc-digits*` and `las-digits*`: transcription of 3 to 7 spoken digits.

Two systems read the same log-mel frames. By CTC (Graves et al., 2006), every step of the recording
outputs a digit or nothing. By Listen, Attend and Spell (Chan et al., 2016,
https://arxiv.org/abs/1508.01211), a pyramid of LSTMs reads the frames and attention finds the next
digit; with the mixed score attention also uses its previous weights (Chorowski et al., 2015,
https://arxiv.org/abs/1506.07503), with monotonic select it cannot move backwards (Raffel et al.,
2017, https://arxiv.org/abs/1704.00784).

Where we differ: the sequences are single recordings joined with pauses and noise, and there is no
published number for them. The recipes `*-speaker` hold out all recordings of one speaker.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ctc_search import ctc_greedy, prefix_beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.metrics.sequence_metrics import edit_rate, exact_match
from saccade.zoo.models.ctc_recogniser import CtcRecogniser
from saccade.zoo.models.listen_attend_spell import ListenAttendSpell
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.ctc_alignment import ctc_of, lattice_traces, log_probs_of, recogniser_loss
from saccade.zoo.recipes.recipe import InputFile, Recipe, Translated, TranslateOptions
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.speech import HOP, LOUDEST, FrameBatch, Frames, decode_wave, log_mel
from saccade.zoo.tasks.spoken_digits import (
    RATE,
    TEST_SEED,
    VALID_SEED,
    JoinedDigits,
    Joining,
    Recordings,
    at_speeds,
    join,
    read_spoken_digits,
    split_recordings,
)
from saccade.zoo.tasks.tokenizers import CharacterTokenizer
from saccade.zoo.tasks.vocabulary import EOS
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import (
    Batch,
    BelowOne,
    Few,
    Fews,
    Many,
    NonNegative,
    Positives,
    TrainConfig,
    Width,
)

DIGITS = CharacterTokenizer.build(["0123456789"])
N_SYMBOLS, N_BANDS = len(DIGITS), 40
EPOCH = 250  # batches in an epoch; generated data have no end
TOGETHER = 100  # sequences in a batch, in evaluation
LONGEST = 20  # symbols that a speller may output
BEAM = 8  # hypotheses, for the metric `error_by_beam`
UNPUBLISHED = "Per cent of digits. There is no published number for joined digits of this data."
FEW_SPEAKERS = "Five speakers are few to generalise to a sixth."

TRAINING = TrainConfig(
    steps=4000,
    minutes=50.0,
    learning_rate=2e-3,
    clip=1.0,
    schedule="cosine",
    warmup=200,
    validate_steps=250,
)


@dataclass(frozen=True, kw_only=True)
class DigitSettings:
    """Sequences of digits from single recordings; each recipe inherits from it."""

    speaker: str = ""
    """Held-out speaker of the test; empty: the official test recordings of all."""
    shortest: Many = 3
    """Digits in a sequence, at least."""
    longest: Many = 7
    """Digits in a sequence, at most."""
    pause: NonNegative = 0.25
    """Seconds of silence around digits, at most."""
    speeds: Positives = (0.9, 1.0, 1.1)
    """Data augmentation: sequences are played at one of these speeds, which also changes their
    pitch."""
    quietest: float = 40.0
    """Signal-to-noise ratio in decibels in the test, and its maximum in training."""
    loudest: float = 15.0
    """Minimum signal-to-noise ratio in decibels in training."""
    d_hidden: Width = 96
    """Units of each LSTM, in each direction."""
    dropout: BelowOne = 0.2
    """Dropout between layers and before the output."""
    batch: Batch = 32
    """Sequences in a batch."""
    n_valid: Many = 400
    """Validation sequences."""
    n_test: Many = 2000
    """Test sequences."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class CtcDigitSettings(DigitSettings):
    """The recogniser's sizes."""

    n_layers: Few = 2
    """Number of bidirectional LSTM layers."""
    strides: Fews = (2, 2)
    """Stride of each convolution over the frames, which come every 10 ms."""


@dataclass(frozen=True, kw_only=True)
class LasDigitSettings(DigitSettings):
    """The listener's and the speller's sizes, and how the speller attends."""

    n_layers: Few = 3
    """Layers of the pyramid; each halves the steps, which begin at 10 ms."""
    d_embed: Width = 32
    """Embedding dimension of a digit."""
    score: Literal["additive", "bilinear", "mixed"] = "additive"
    """Attention score: additive or bilinear in the content; mixed: also with previous weights."""
    select: Literal["soft", "monotonic"] = "soft"
    """soft: anywhere; monotonic: only from left to right."""
    smoothing: BelowOne = 0.1
    """Label smoothing: the fraction of each target that is spread over all symbols."""


@dataclass(frozen=True, kw_only=True)
class DigitRecipe(Recipe):
    """A recipe whose metric is the digit error rate in per cent."""

    reads_files = True

    task: str = "joined_digits"
    metric: str = "error"
    is_better: Literal["less", "more"] = "less"
    other_metrics: Mapping[str, float | None] = field(
        default_factory=lambda: {"error_by_beam": None}
    )
    minutes: float = 15.0
    gallery: tuple[str, ...] = ("31415", "77007")

    def build(self, settings: DigitSettings, data: Path | None) -> Job:
        """New sequences at every step, from the recordings of the split."""
        model = self.restore(settings, {})
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
            loss=lambda model, batch: self.loss(settings, model, batch),
            validate=lambda model: self._metrics(model, valid),
            score="error",
            is_better="less",
            config=settings.training,
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Metrics on held-out recordings, by the best path or symbol and by a beam of eight."""
        settings = run.settings
        test = split_recordings(read_spoken_digits(data), speaker=settings.speaker).test
        batches = list(_held_out(test, settings, n=settings.n_test, seed=TEST_SEED))
        searched = self._metrics(run.model, batches, beam_size=BEAM)
        return {**self._metrics(run.model, batches), "error_by_beam": searched["error"]}

    def translate(
        self,
        run: TrainedRun,
        texts: Sequence[str],
        options: TranslateOptions,
        *,
        data: Path | None = None,
    ) -> list[Translated]:
        """The digits in each sound."""
        sounds = [read_sound(run.settings, text, data=data) for text in texts]
        found = [self.recognise(run.model, sound, options)[0] for sound in sounds]
        return [Translated(DIGITS.decode(each.ids), each.log_prob) for each in found]

    @abstractmethod
    def loss(self, settings: Any, model: nn.Module, batch: FrameBatch) -> LossOut:
        """Loss in nats per symbol."""

    @abstractmethod
    def recognise(
        self, model: nn.Module, source: Frames, options: TranslateOptions
    ) -> list[Hypothesis]:
        """The text of each recording."""

    def _metrics(
        self, model: nn.Module, batches: Sequence[FrameBatch], *, beam_size: int = 1
    ) -> dict[str, float]:
        """``error``: percentage of digits; ``sequences``: percentage of sequences without any."""
        options = TranslateOptions(beam=beam_size, length_penalty=0.0, max_length=LONGEST)
        said, right = [], []
        for batch in batches:
            found = self.recognise(model, batch.source, options)
            said += [DIGITS.decode(each.ids) for each in found]
            right += [DIGITS.decode(row) for row in batch.text.tolist()]
        return {
            "error": 100 * edit_rate(said, right).rate,
            "sequences": 100 * exact_match(said, right).rate,
        }


@dataclass(frozen=True, kw_only=True)
class CtcDigitRecipe(DigitRecipe):
    """By CTC: every step of the recording outputs a digit or nothing."""

    system: str = "ctc_recogniser"

    def restore(self, settings: CtcDigitSettings, kept: Mapping[str, Any]) -> CtcRecogniser:
        """The untrained model."""
        del kept
        return CtcRecogniser(
            d_frame=N_BANDS,
            n_symbols=N_SYMBOLS,
            d_hidden=settings.d_hidden,
            n_layers=settings.n_layers,
            strides=settings.strides,
            dropout=settings.dropout,
        )

    def loss(self, settings: CtcDigitSettings, model: nn.Module, batch: FrameBatch) -> LossOut:
        """Loss in nats per symbol, summed over all paths that collapse to the text."""
        del settings
        return recogniser_loss(model, batch)

    def recognise(
        self, model: nn.Module, source: Frames, options: TranslateOptions
    ) -> list[Hypothesis]:
        """The text of each recording: the best path, or by prefix beam search."""
        said = log_probs_of(model, source)
        if options.beam == 1:
            return ctc_greedy(*said)
        return [found[0] for found in prefix_beam(*said, size=options.beam)]

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """Where each digit is recognised: a lattice, and the outputs of each step."""
        model = ctc_of(run.model)
        said = log_probs_of(model, read_sound(run.settings, text, data=data))
        (found,) = ctc_greedy(*said)
        labels = _seconds(said.mask.shape[1], stride=math.prod(model.strides))
        return lattice_traces(said, found, DIGITS, labels=labels)


@dataclass(frozen=True, kw_only=True)
class LasDigitRecipe(DigitRecipe):
    """By Listen, Attend and Spell: a pyramid listens, attention finds the next digit."""

    system: str = "listen_attend_spell"

    def restore(self, settings: LasDigitSettings, kept: Mapping[str, Any]) -> ListenAttendSpell:
        """The untrained model."""
        del kept
        return ListenAttendSpell(
            d_frame=N_BANDS,
            n_symbols=N_SYMBOLS,
            d_hidden=settings.d_hidden,
            d_embed=settings.d_embed,
            n_layers=settings.n_layers,
            score=settings.score,
            select=settings.select,
            dropout=settings.dropout,
        )

    def loss(self, settings: LasDigitSettings, model: nn.Module, batch: FrameBatch) -> LossOut:
        """Loss in nats per symbol of the text."""
        spelling = batch.spelling
        wanted = spelling.target_out[spelling.mask]
        found = token_loss(model(batch), wanted, smoothing=settings.smoothing)
        return LossOut(found.loss, found.n_tokens, {"nats": found.nll / found.n_tokens})

    def recognise(
        self, model: nn.Module, source: Frames, options: TranslateOptions
    ) -> list[Hypothesis]:
        """The text of each recording: greedy, or by beam search."""
        assert isinstance(model, ListenAttendSpell), f"no speller but {type(model).__name__}"
        source = to_device_of(model, source)
        if options.beam == 1:
            return greedy(model, source, max_length=options.max_length)
        return beam(
            model,
            source,
            size=options.beam,
            max_length=options.max_length,
            length_penalty=options.length_penalty,
        ).best

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """Where attention goes for each digit."""
        source = read_sound(run.settings, text, data=data)
        options = TranslateOptions(beam=1, max_length=LONGEST)
        (found,) = self.recognise(run.model, source, options)
        assert found.weights is not None, "a speller returns its weights"
        return [
            Trace(
                kind="attention",
                steps=tuple(DIGITS.labels([*found.ids, EOS])[: len(found.weights)]),
                memory=_seconds(found.weights.shape[1], stride=2**run.settings.n_layers),
                weights=found.weights.cpu(),
                title=DIGITS.decode(found.ids),
                meta={"input": text, "log_prob": found.log_prob},
            )
        ]


def digit_ids() -> Tensor:
    """The id of each digit, 0 to 9."""
    return torch.tensor([DIGITS.encode(str(digit))[0] for digit in range(10)])


def _held_out(
    recordings: Recordings, settings: DigitSettings, *, n: int, seed: int
) -> JoinedDigits:
    """Fixed sequences, at their original speed."""
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
    """The start time of each step."""
    return tuple(f"{step * stride * HOP:.2f}" for step in range(n))


# The sound of a user's input: a file, or digits from held-out recordings.


def read_sound(settings: DigitSettings, text: str, *, data: Path | None = None) -> Frames:
    """The sound of a user's input: a WAV file, or digits from held-out recordings.

    Args:
        text: ``hello.wav``, ``31415``, or with a speaker ``theo 31415``.
        data: The folder with data sets.
    """
    if isinstance(text, InputFile):
        samples = decode_wave(text.data, text, rate=RATE).float()[None] / LOUDEST
        return log_mel(samples, torch.ones_like(samples, dtype=torch.bool), rate=RATE)
    text = text.strip()
    *named, digits = text.split() or [""]
    if digits.isdecimal() and len(named) <= 1:
        return _said(settings, digits, speaker=named[0] if named else "", data=data)
    raise UsageError(
        f"expected a WAV file or digits of test recordings, got {text!r}",
        hint="for example hello.wav, 31415, or with a speaker 'theo 31415'",
    )


def _said(settings: DigitSettings, digits: str, *, speaker: str, data: Path | None) -> Frames:
    """Digits from the first test recordings of a speaker."""
    test = split_recordings(read_spoken_digits(data), speaker=settings.speaker).test
    present = [test.speakers[each] for each in test.speaker.unique().tolist()]
    speaker = speaker or present[0]
    if speaker not in present:
        raise UsageError(
            f"no test recording is by {speaker!r}", hint=f"there are {', '.join(present)}"
        )
    waves = join(
        test,
        torch.tensor([_takes(test, digits, speaker)]),
        joining=Joining(pause=settings.pause, noise=(settings.quietest, settings.quietest)),
        generator=generator_of(TEST_SEED, 0),
    )
    return log_mel(waves.samples, waves.mask, rate=RATE)


def _takes(recordings: Recordings, digits: str, speaker: str) -> list[int]:
    """Recordings by a speaker; a repeated digit is another recording."""
    is_theirs = recordings.speaker == recordings.speakers.index(speaker)
    chosen: list[int] = []
    for number, digit in enumerate(digits):
        rows = (is_theirs & (recordings.digits == int(digit))).nonzero()[:, 0]
        if len(rows) == 0:
            raise UsageError(
                f"no test recording by {speaker!r} says {digit}",
                hint="take another copy of the data",
            )
        chosen.append(int(rows[digits[:number].count(digit) % len(rows)]))
    return chosen


RECIPES = (
    CtcDigitRecipe(
        name="ctc-digits",
        settings=CtcDigitSettings(),
        about="Transcribes 3 to 7 spoken digits; held-out recordings of known speakers.",
        target=2.0,
        note=UNPUBLISHED,
    ),
    CtcDigitRecipe(
        name="ctc-digits-speaker",
        settings=CtcDigitSettings(speaker="theo", speeds=(0.8, 0.9, 1.0, 1.1, 1.2)),
        about="Transcribes spoken digits of an unseen speaker.",
        note=FEW_SPEAKERS,
    ),
    LasDigitRecipe(
        name="las-digits",
        settings=LasDigitSettings(),
        about="Listens to 3 to 7 spoken digits and spells them; held-out recordings.",
        target=3.0,
        note=UNPUBLISHED,
    ),
    LasDigitRecipe(
        name="las-digits-location",
        settings=LasDigitSettings(score="mixed"),
        about="The same with attention that uses its previous weights.",
        source="https://arxiv.org/abs/1506.07503",
    ),
    LasDigitRecipe(
        name="las-digits-monotonic",
        settings=LasDigitSettings(select="monotonic"),
        about="The same with monotonic attention.",
        source="https://arxiv.org/abs/1704.00784",
    ),
    LasDigitRecipe(
        name="las-digits-speaker",
        settings=LasDigitSettings(speaker="theo", speeds=(0.8, 0.9, 1.0, 1.1, 1.2)),
        about="Spells spoken digits of an unseen speaker.",
        note=FEW_SPEAKERS,
    ),
)
