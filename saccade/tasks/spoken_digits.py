"""The Free Spoken Digit Dataset: 3,000 recordings of single digits by six speakers, 8 kHz."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int, Int16
from torch import Tensor

from saccade.errors import TaskError, UsageError
from saccade.tasks.fetch import find_data
from saccade.tasks.waves import decode_wave

RATE = 8000
ARCHIVE = "free-spoken-digit-dataset.tar.gz"
N_TEST = 5  # takes 0 to 4 of each digit and speaker are the official test part
FIRST_VALID = 47  # takes 47 to 49 are kept to choose by
_NAME = re.compile(r"(?:.*/)?(\d)_([a-z]+)_(\d+)\.wav")


@dataclass(frozen=True)
class Recordings:
    """Recordings of one digit each; their samples lie end to end and are never copied."""

    samples: Int16[Tensor, " sample"]
    starts: Int[Tensor, " row"]
    lengths: Int[Tensor, " row"]
    digits: Int[Tensor, " row"]
    speakers: tuple[str, ...]
    """The names of all."""
    speaker: Int[Tensor, " row"]
    """Who says it: a place among ``speakers``."""
    take: Int[Tensor, " row"]
    """Which of the speaker's 50 recordings of this digit it is."""

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, rows: Int[Tensor, " some"]) -> Recordings:
        """These recordings, in this order."""
        parts = (self.starts, self.lengths, self.digits, self.speaker, self.take)
        starts, lengths, digits, speaker, take = (part[rows] for part in parts)
        return Recordings(self.samples, starts, lengths, digits, self.speakers, speaker, take)


class RecordingSplits(NamedTuple):
    """What to learn from, to choose by and to report."""

    train: Recordings
    valid: Recordings
    test: Recordings


def read_spoken_digits(data: str | Path | None = None) -> Recordings:
    """All recordings, out of the archive or out of a folder ``recordings`` as git has it."""
    folder = find_data("fsdd", data)
    archive = folder / ARCHIVE
    found = _in_archive(archive) if archive.is_file() else _in_folder(folder / "recordings")
    rows = sorted((speaker, digit, take, sound) for digit, speaker, take, sound in found)
    if not rows:
        raise TaskError(f"{folder} holds no recordings", hint="take another copy of the archive")
    speakers = tuple(sorted({speaker for speaker, *_ in rows}))
    lengths = torch.tensor([len(sound) for *_, sound in rows])
    return Recordings(
        samples=torch.cat([sound for *_, sound in rows]),
        starts=lengths.cumsum(0) - lengths,
        lengths=lengths,
        digits=torch.tensor([digit for _, digit, *_ in rows]),
        speakers=speakers,
        speaker=torch.tensor([speakers.index(speaker) for speaker, *_ in rows]),
        take=torch.tensor([take for _, _, take, _ in rows]),
    )


def split_recordings(recordings: Recordings, *, speaker: str = "") -> RecordingSplits:
    """The official split; or by speaker: one is the test, and in no other part.

    With a speaker held out, what is chosen by are the official test recordings of the others.
    """
    is_test, is_valid = recordings.take < N_TEST, recordings.take >= FIRST_VALID
    if speaker:
        if speaker not in recordings.speakers:
            raise UsageError(
                f"there is no speaker {speaker!r}",
                hint=f"hold out one of {', '.join(recordings.speakers)}",
            )
        is_his = recordings.speaker == recordings.speakers.index(speaker)
        is_test, is_valid = is_his, is_test & ~is_his
    parts = (~is_test & ~is_valid, is_valid, is_test)
    return RecordingSplits(*(recordings.select(part.nonzero()[:, 0]) for part in parts))


def at_speeds(recordings: Recordings, speeds: Sequence[float]) -> Recordings:
    """All recordings once at each speed; a speaker who is played faster is another speaker.

    Ko et al., 2015 ("Audio augmentation for speech recognition"), who take 0.9, 1 and 1.1. Pitch
    changes with tempo, as on a tape. Between two samples there is a straight line.

    >>> one = torch.tensor([0])
    >>> ten = Recordings(torch.arange(10).short(), one, one + 10, one, ("me",), one, one)
    >>> at_speeds(ten, [2.0, 1.0]).samples
    tensor([0, 2, 4, 6, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], dtype=torch.int16)
    """
    if not speeds or min(speeds) <= 0:
        raise UsageError(
            f"expected speeds above 0, got {', '.join(map(str, speeds)) or 'none'}",
            hint="0.9, 1, 1.1 are usual",
        )
    copies = [_played(recordings, speed) for speed in speeds]
    n = len(recordings.speakers)
    lengths = torch.cat([copy.lengths for copy in copies])
    return Recordings(
        samples=torch.cat([copy.samples for copy in copies]),
        starts=lengths.cumsum(0) - lengths,
        lengths=lengths,
        digits=torch.cat([copy.digits for copy in copies]),
        speakers=tuple(f"{name} x{speed:g}" for speed in speeds for name in recordings.speakers),
        speaker=torch.cat([copy.speaker + n * at for at, copy in enumerate(copies)]),
        take=torch.cat([copy.take for copy in copies]),
    )


def _played(recordings: Recordings, speed: float) -> Recordings:
    """The recordings at one speed, laid end to end."""
    lengths = (recordings.lengths / speed).long().clamp_min(1)
    starts = lengths.cumsum(0) - lengths
    row = torch.arange(len(lengths)).repeat_interleave(lengths)
    place = (torch.arange(len(row)) - starts[row]) * speed
    left = recordings.starts[row] + place.long()
    right = (left + 1).minimum((recordings.starts + recordings.lengths - 1)[row])
    before, after = recordings.samples[left].float(), recordings.samples[right].float()
    samples = torch.lerp(before, after, place.frac()).round().short()
    return replace(recordings, samples=samples, starts=starts, lengths=lengths)


Recording = tuple[int, str, int, Tensor]  # digit, speaker, take, samples


def _in_archive(path: Path) -> Iterator[Recording]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                opened = archive.extractfile(member) if member.name.endswith(".wav") else None
                if opened is not None:
                    yield _recording(opened.read(), member.name)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise TaskError(f"{path} is a broken archive: {error}", hint="fetch it again") from error
    except OSError as error:
        raise TaskError(
            f"could not read {path}: {error.strerror or error}", hint="check its permissions"
        ) from error


def _in_folder(folder: Path) -> Iterator[Recording]:
    for path in folder.glob("*.wav"):
        yield _recording(path.read_bytes(), str(path))


def _recording(data: bytes, name: str) -> Recording:
    named = _NAME.fullmatch(name)
    if named is None:
        raise TaskError(
            f"{name} is not named like a recording", hint="expected digit_speaker_take.wav"
        )
    return int(named[1]), named[2], int(named[3]), decode_wave(data, name, rate=RATE)
