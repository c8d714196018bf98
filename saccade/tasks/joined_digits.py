"""Sequences of spoken digits: recordings of one speaker, one after the other, with pauses.

A recording holds one digit, so where it begins and ends in the joined sound is known to the
generator and told to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int16
from torch import Tensor

from saccade.errors import UsageError
from saccade.tasks.frame_batch import FrameBatch
from saccade.tasks.mel_spectrum import log_mel
from saccade.tasks.spoken_digits import RATE, Recordings
from saccade.tasks.step_seed import generator_of
from saccade.tasks.waves import LOUDEST

# Far from the seeds of trainings, which are small.
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
    """White noise is so many decibels below the voice: a number between these two."""

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
    """All rows end to end: before each digit its pause, behind the last one the rest in silence.

    One copy of pieces of memory. An index for every sample, in one operation without this loop,
    takes ten times as long: there are a million of them in a batch, and some hundred pieces.
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

    A batch depends on seed, epoch and its number alone, and is made when it is asked for.

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
        """Batches in an epoch."""
        return self.n_batches

    def __getitem__(self, number: int) -> FrameBatch:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        if not 0 <= number < self.n_batches:
            raise IndexError(number)  # how a loop over a sequence learns that it is over
        generator = generator_of(self.seed, self.first + number)
        chosen = self.choose(generator)
        waves = join(self.recordings, chosen, joining=self.joining, generator=generator)
        frames = log_mel(waves.samples, waves.mask, rate=RATE)
        text = self.ids[self.recordings.digits[chosen]]
        return FrameBatch(*frames, text, torch.ones_like(text, dtype=torch.bool))

    def choose(self, generator: torch.Generator) -> Int[Tensor, "batch n_digits"]:
        """Recordings of one speaker a row, and as many of them in every row."""
        least, most = self.joining.shortest, self.joining.longest
        n = int(torch.randint(least, most + 1, (), generator=generator))
        present = self.counts.nonzero()[:, 0]
        speaker = present[torch.randint(len(present), (self.batch, 1), generator=generator)]
        share = torch.rand(self.batch, n, generator=generator)
        inside = (share * self.counts[speaker]).long()
        return self.by_speaker[(self.counts.cumsum(0) - self.counts)[speaker] + inside]
