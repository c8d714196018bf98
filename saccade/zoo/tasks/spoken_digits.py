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
from jaxtyping import Bool, Float, Int, Int16
from torch import Tensor

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks.datasets import find_data, generator_of
from saccade.zoo.tasks.speech import LOUDEST, FrameBatch, decode_wave, log_mel

RATE = 8000
ARCHIVE = "free-spoken-digit-dataset.tar.gz"
N_TEST = 5  # takes 0 to 4 of each digit and speaker are the official test part
FIRST_VALID = 47  # takes 47 to 49 are for validation
_NAME = re.compile(r"(?:.*/)?(\d)_([a-z]+)_(\d+)\.wav")


@dataclass(frozen=True)
class Recordings:
    """Recordings of one digit each; their samples are concatenated and never copied."""

    samples: Int16[Tensor, " sample"]
    starts: Int[Tensor, " row"]
    lengths: Int[Tensor, " row"]
    digits: Int[Tensor, " row"]
    speakers: tuple[str, ...]
    """The names of all."""
    speaker: Int[Tensor, " row"]
    """The speaker: an index into ``speakers``."""
    take: Int[Tensor, " row"]
    """Which of the speaker's 50 recordings of this digit it is."""

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, rows: Int[Tensor, " some"]) -> Recordings:
        """The given recordings, in this order."""
        parts = (self.starts, self.lengths, self.digits, self.speaker, self.take)
        starts, lengths, digits, speaker, take = (part[rows] for part in parts)
        return Recordings(self.samples, starts, lengths, digits, self.speakers, speaker, take)


class RecordingSplits(NamedTuple):
    """The training, validation and test parts."""

    train: Recordings
    valid: Recordings
    test: Recordings


def read_spoken_digits(data: str | Path | None = None) -> Recordings:
    """All recordings, from the archive or from a folder ``recordings`` of a git clone."""
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
    """The official split; or by speaker: one speaker is the test, and in no other part.

    With a held-out speaker, the validation part is the official test recordings of the others.
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
    changes with tempo, as on a tape. Samples are interpolated linearly.

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
    """The recordings at one speed, concatenated."""
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


# Sequences of spoken digits: recordings of one speaker, one after the other, with pauses.
#
# A recording holds one digit, so its start and end in the joined sound are known to the generator,
# but not given to a model.

# Far from the seeds of training runs, which are small.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002


@dataclass(frozen=True, kw_only=True)
class Joining:
    """How digits are put together."""

    shortest: int = 3
    """Digits in a sequence, at least."""
    longest: int = 7
    """Digits in a sequence, at most."""
    pause: float = 0.25
    """Seconds of silence before, between and after them, at most."""
    noise: tuple[float, float] = (40.0, 40.0)
    """Signal-to-noise ratio of white noise in decibels: drawn between these two."""

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise UsageError(
                f"expected sequences of 1 digit or more, got {self.shortest} to {self.longest}",
                hint="3 to 7 are usual",
            )
        if self.pause < 0:
            raise UsageError(
                f"expected a pause of 0 seconds or more, got {self.pause}", hint="0.25 is usual"
            )


class Waves(NamedTuple):
    """Joined sounds."""

    samples: Float[Tensor, "batch sample"]
    mask: Bool[Tensor, "batch sample"]
    spans: Int[Tensor, "batch n_digits 2"]
    """The sample where each digit begins, and the one after its last."""


def join(
    recordings: Recordings,
    chosen: Int[Tensor, "batch n_digits"],
    *,
    joining: Joining,
    generator: torch.Generator,
) -> Waves:
    """Recordings one after the other, with pauses around them, in noise."""
    batch, n = chosen.shape
    waits = (torch.rand(batch, n + 1, generator=generator) * joining.pause * RATE).long()
    parts = torch.stack([waits[:, :-1], recordings.lengths[chosen]], dim=2)  # pause, digit, ...
    spans = parts.flatten(1).cumsum(1).unflatten(1, (n, 2))
    ends = spans[:, -1, 1] + waits[:, -1]
    longest = int(ends.max())
    rest = longest - spans[:, -1, 1]  # the last pause, and padding
    samples = _laid(recordings, chosen, waits[:, :-1], rest).view(batch, longest) / LOUDEST
    mask = torch.arange(longest) < ends[:, None]
    n_voiced = recordings.lengths[chosen].sum(1, keepdim=True)
    voice = torch.linalg.vector_norm(samples, dim=1, keepdim=True) / n_voiced.sqrt()
    low, high = joining.noise
    decibels = low + (high - low) * torch.rand(batch, 1, generator=generator)
    hiss = torch.randn(samples.shape, generator=generator)
    samples.addcmul_(hiss, voice * 10 ** (-decibels / 20))
    return Waves(samples.masked_fill_(~mask, 0.0), mask, spans)


def _laid(
    recordings: Recordings,
    chosen: Int[Tensor, "batch n_digits"],
    waits: Int[Tensor, "batch n_digits"],
    rest: Int[Tensor, " batch"],
) -> Int16[Tensor, " sample"]:
    """All rows concatenated: each digit after its pause, and silence after the last one.

    Copies pieces of memory. One operation with an index for every sample, without this loop, takes
    ten times as long: a batch has a million samples, and some hundred pieces.
    """
    silence = recordings.samples.new_zeros(int(max(waits.max(), rest.max())))
    firsts = recordings.starts[chosen]
    lasts = firsts + recordings.lengths[chosen]
    columns = (each.tolist() for each in (waits, firsts, lasts, rest))
    pieces = []
    for row_waits, row_firsts, row_lasts, left in zip(*columns, strict=True):
        for wait, first, last in zip(row_waits, row_firsts, row_lasts, strict=True):
            pieces += [silence[:wait], recordings.samples[first:last]]
        pieces.append(silence[:left])
    return torch.cat(pieces)


class JoinedDigits(Sequence[FrameBatch]):
    """Batches of joined digits as log-mel frames; all of a batch have the same number of digits.

    A batch depends only on seed, epoch and its number, and is generated on demand.

    Args:
        ids: The id of each digit, 0 to 9.
    """

    def __init__(
        self,
        recordings: Recordings,
        joining: Joining,
        *,
        ids: Int[Tensor, " ten"],
        batch: int,
        n_batches: int,
        seed: int,
        epoch: int = 0,
    ) -> None:
        self.recordings, self.joining, self.ids = recordings, joining, ids
        self.batch, self.seed, self.first = batch, seed, epoch * n_batches
        self.n_batches = n_batches
        self.by_speaker = recordings.speaker.argsort(stable=True)
        self.counts = recordings.speaker.bincount(minlength=len(recordings.speakers))

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self.n_batches

    def __getitem__(self, number: int) -> FrameBatch:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        if not 0 <= number < self.n_batches:
            raise IndexError(number)  # ends a loop over the sequence
        generator = generator_of(self.seed, self.first + number)
        chosen = self.choose(generator)
        waves = join(self.recordings, chosen, joining=self.joining, generator=generator)
        frames = log_mel(waves.samples, waves.mask, rate=RATE)
        text = self.ids[self.recordings.digits[chosen]]
        return FrameBatch(*frames, text, torch.ones_like(text, dtype=torch.bool))

    def choose(self, generator: torch.Generator) -> Int[Tensor, "batch n_digits"]:
        """Recordings of one speaker in each row, and the same number in every row."""
        least, most = self.joining.shortest, self.joining.longest
        n = int(torch.randint(least, most + 1, (), generator=generator))
        present = self.counts.nonzero()[:, 0]
        speaker = present[torch.randint(len(present), (self.batch, 1), generator=generator)]
        share = torch.rand(self.batch, n, generator=generator)
        inside = (share * self.counts[speaker]).long()
        return self.by_speaker[(self.counts.cumsum(0) - self.counts)[speaker] + inside]
