"""The sound that a user means: a file, or digits that held-out recordings say."""

from __future__ import annotations

from pathlib import Path

import torch

from saccade.errors import UsageError
from saccade.zoo.recipes.digit_settings import DigitSettings
from saccade.zoo.tasks.curricula import generator_of
from saccade.zoo.tasks.speech import LOUDEST, Frames, log_mel, read_wave
from saccade.zoo.tasks.spoken_digits import (
    RATE,
    TEST_SEED,
    Joining,
    Recordings,
    join,
    read_spoken_digits,
    split_recordings,
)


def read_sound(settings: DigitSettings, text: str) -> Frames:
    """The sound that a user means: a WAV file, or digits, said by held-out recordings.

    Args:
        text: ``hello.wav``, ``31415``, or with a speaker ``theo 31415``.
    """
    text = text.strip()
    *named, digits = text.split() or [""]
    if digits.isdecimal() and len(named) <= 1:
        return _said(settings, digits, speaker=named[0] if named else "")
    if not Path(text).is_file():
        raise UsageError(
            f"expected a WAV file or digits to be said by test recordings, got {text!r}",
            hint="for example hello.wav, 31415, or with a speaker 'theo 31415'",
        )
    samples = read_wave(text, rate=RATE).float()[None] / LOUDEST
    return log_mel(samples, torch.ones_like(samples, dtype=torch.bool), rate=RATE)


def _said(settings: DigitSettings, digits: str, *, speaker: str) -> Frames:
    """Digits said by the first test recordings of a speaker."""
    test = split_recordings(read_spoken_digits(), speaker=settings.speaker).test
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
    """Recordings by a speaker; a digit that is said again is another recording."""
    is_his = recordings.speaker == recordings.speakers.index(speaker)
    chosen: list[int] = []
    for number, digit in enumerate(digits):
        rows = (is_his & (recordings.digits == int(digit))).nonzero()[:, 0]
        if len(rows) == 0:
            raise UsageError(
                f"no test recording by {speaker!r} says {digit}",
                hint="take another copy of the data",
            )
        chosen.append(int(rows[digits[:number].count(digit) % len(rows)]))
    return chosen
