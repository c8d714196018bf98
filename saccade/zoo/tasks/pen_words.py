"""Handwritten words as pen strokes: lower-case words of UNIPEN, split by writer.

UNIPEN, train_r01_v07 (Guyon et al., 1994, "UNIPEN project of on-line data exchange and recognizer
benchmarks"), one word a line: ``{"writer", "label", "strokes": [[[x, y], ...], ...]}``.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.nn import functional

from saccade.errors import TaskError
from saccade.zoo.tasks.books import read_lines
from saccade.zoo.tasks.datasets import find_data, generator_of
from saccade.zoo.tasks.speech import FrameBatch, Frames
from saccade.zoo.tasks.tokenizers import Tokenizer
from saccade.zoo.tasks.vocabulary import Ragged

# Normalised pen strokes: one scale, and points at equal distances along the ink.

Stroke = Float64[np.ndarray, "_ 2"]

STEP = 0.4
"""Distance of points, in standard deviations of the word's height: about fifteen a letter."""

FLATTEST = 300  # upper limit of a word's ink length, in standard deviations of its height


class Resampled(NamedTuple):
    """The points of many words, laid end to end."""

    points: Float[Tensor, "point 2"]
    is_last: Bool[Tensor, " point"]
    """Of its stroke."""
    starts: Int[Tensor, " row_or_end"]


def resample(words: Sequence[Sequence[Stroke]]) -> Resampled:
    """Put points at equal distances along each stroke, all words at once.

    Pens report points at equal times, devices at different rates and in different units, and slow
    writers have many: none of this is information about the text. Jaeger et al., 2001 ("Online
    handwriting recognition: the NPen++ recognizer"), section 3, do the same. A word's unit is the
    standard deviation of its height along the ink, and y is 0 in its middle; x begins at 0.

    >>> line = np.array([[10.0, 5.0], [10.0, 9.0]])
    >>> resample([[line]]).points[[0, -1]]
    tensor([[ 0.0000, -1.7321],
            [ 0.0000,  1.7321]])
    """
    if not words:
        return Resampled(torch.zeros(0, 2), torch.zeros(0, dtype=torch.bool), torch.tensor([0]))
    strokes = list(chain.from_iterable(words))
    n_points = np.array([len(stroke) for stroke in strokes])
    n_strokes = np.array([len(word) for word in words])
    word_of = np.repeat(np.repeat(np.arange(len(words)), n_strokes), n_points)
    is_last = np.zeros(len(word_of), dtype=bool)
    is_last[n_points.cumsum() - 1] = True
    points = _scaled(np.concatenate(strokes), word_of, is_last, n_words=len(words))
    stroke_of = np.repeat(np.arange(len(strokes)), n_points)
    ink = np.where(is_last, 0.0, _distances(points))
    lengths = np.bincount(stroke_of, ink, minlength=len(strokes))
    # One long line of all strokes; gaps between them keep interpolation inside each.
    offsets = (lengths + 1.0).cumsum() - lengths
    place = ink.cumsum() - ink - (lengths.cumsum() - lengths)[stroke_of] + offsets[stroke_of]
    n_new = np.where(n_points == 1, 1, np.rint(lengths / STEP).astype(np.int64).clip(1) + 1)
    number = np.arange(n_new.sum()) - np.repeat(n_new.cumsum() - n_new, n_new)
    share = number / np.repeat((n_new - 1).clip(1), n_new)
    asked = np.repeat(offsets, n_new) + share * np.repeat(lengths, n_new)
    new = np.stack([np.interp(asked, place, points[:, axis]) for axis in (0, 1)], axis=1)
    ends = np.zeros(len(new), dtype=bool)
    ends[n_new.cumsum() - 1] = True
    of_word = np.add.reduceat(n_new, n_strokes.cumsum() - n_strokes)
    return Resampled(
        torch.from_numpy(new.astype(np.float32)),
        torch.from_numpy(ends),
        torch.from_numpy(np.concatenate([[0], of_word.cumsum()])),
    )


def _distances(points: np.ndarray) -> np.ndarray:
    """From each point to the one after it; 0 at the last of all."""
    steps = np.diff(points, axis=0, append=points[-1:])
    return np.hypot(steps[:, 0], steps[:, 1])


def _scaled(
    points: np.ndarray, word_of: np.ndarray, is_last: np.ndarray, *, n_words: int
) -> np.ndarray:
    """Each word in standard deviations of its own height, weighted by ink."""
    ink = np.where(is_last, 0.0, _distances(points))
    y = points[:, 1]
    after = np.append(y[1:], y[-1:])
    total = np.bincount(word_of, ink, minlength=n_words)
    is_ink = total > 0  # a word of dots alone has no ink length
    weight = np.where(is_ink[word_of], ink, 1.0)
    total = np.where(is_ink, total, np.bincount(word_of, minlength=n_words))
    middle = np.bincount(word_of, weight * (y + after) / 2, minlength=n_words) / total
    low, high = y - middle[word_of], after - middle[word_of]
    # The mean square along a straight line from low to high.
    square = (low * low + low * high + high * high) / 3
    spread = np.sqrt(np.bincount(word_of, weight * square, minlength=n_words) / total)
    # A dash has no height. No word of twelve letters is as flat as this.
    spread = np.maximum(spread, np.bincount(word_of, ink, minlength=n_words) / FLATTEST)
    spread = np.where(spread > 0, spread, 1.0)
    first = np.searchsorted(word_of, np.arange(n_words))
    left = points[first[word_of], 0]
    return np.stack([points[:, 0] - left, y - middle[word_of]], axis=1) / spread[word_of, None]


# Of twenty parts of the writers, by a hash of their names.
TEST_PARTS, VALID_PARTS = {0, 1}, {2}


@dataclass(frozen=True)
class PenWords:
    """Words as evenly spaced points of one scale, concatenated."""

    points: Float[Tensor, "point 2"]
    """x to the right and y upwards, in standard deviations of the word's height; see `resample`."""
    is_last: Bool[Tensor, " point"]
    """The pen is lifted after this point."""
    starts: Int[Tensor, " row_or_end"]
    """Where each word begins; the last value is the number of points."""
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Int[Tensor, " row"]:
        """How many points each word has."""
        return self.starts.diff()

    def one(self, row: int) -> PenWords:
        """One word alone."""
        first, last = self.starts[row : row + 2].tolist()
        starts = self.starts[row : row + 2] - first
        points, is_last = self.points[first:last], self.is_last[first:last]
        return PenWords(points, is_last, starts, self.labels[row : row + 1])


class PenSplits(NamedTuple):
    """Training, validation and test words; no writer is in two parts."""

    train: PenWords
    valid: PenWords
    test: PenWords


def read_pen_words(data: str | Path | None = None) -> PenSplits:
    """All words, split by writer: of 274 about a tenth is the test, a twentieth for validation."""
    path = find_data("unipen-words", data) / "words.jsonl"
    parts: list[tuple[list[str], list[list[Stroke]]]] = [([], []) for _ in range(3)]
    for number, line in enumerate(read_lines(path), start=1):
        where = f"word {number} of {path}"
        try:
            word = json.loads(line)
            writer, label = str(word["writer"]), str(word["label"])
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError(
                f"{where} is damaged: {error}", hint="take another copy of it"
            ) from error
        labels, strokes = parts[part_of(person_of(writer))]
        labels.append(label)
        strokes.append(check_strokes(word.get("strokes"), where))
    return PenSplits(*(pen_words(labels, strokes) for labels, strokes in parts))


def pen_words(labels: Sequence[str], strokes: Sequence[Sequence[Stroke]]) -> PenWords:
    """Normalised words of the given strokes."""
    found = resample(strokes)
    return PenWords(found.points, found.is_last, found.starts, tuple(labels))


def check_strokes(strokes: Any, where: str) -> list[Stroke]:
    """The strokes of a word as arrays of points; refuses anything else.

    >>> [stroke.shape for stroke in check_strokes([[[1, 2], [3, 4]], [[5, 6]]], "a word")]
    [(2, 2), (1, 2)]
    """
    form = "a word is a list of strokes, a stroke a list of points [x, y]"
    if not isinstance(strokes, list) or not strokes:
        raise TaskError(f"{where} has no strokes", hint=form)
    found = []
    for number, stroke in enumerate(strokes, start=1):
        if not stroke:
            raise TaskError(f"stroke {number} of {where} is empty", hint=f"leave it out: {form}")
        try:
            points = np.asarray(stroke, dtype=np.float64)
        except (ValueError, TypeError):
            points = np.empty((0, 0))
        if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
            raise TaskError(f"stroke {number} of {where} does not hold points", hint=form)
        found.append(points)
    return found


def person_of(writer: str) -> str:
    """The writer of a file, by its name.

    Files of one person have the same letters before different numbers (sessions, pages), in folders
    of different sessions. Writers who share their letters (``app0742``, ``app1143``) count as one;
    the split stays valid, since none of them is in two parts.

    >>> [person_of(name) for name in ("sta/sta0/hpb0-cb.dat", "sta/sta1/hpb1-cb.dat", "a/Al2.dat")]
    ['cb', 'cb', 'al']
    """
    name = re.sub(r"^hpb\d-?", "", Path(writer).stem.lower())
    letters = re.search("[a-z]+", name)
    return letters[0] if letters else Path(writer).parent.as_posix()


def part_of(person: str) -> int:
    """The part of a writer: 0 training, 1 validation, 2 test."""
    # Not Python's own hash, which differs from process to process.
    part = zlib.crc32(person.encode()) % 20
    return 2 if part in TEST_PARTS else 1 if part in VALID_PARTS else 0


def parse_strokes(data: bytes, where: str) -> list[Stroke]:
    """The strokes of one word from a JSON file of the user's, alone or under ``strokes``.

    Args:
        where: its name in an error message.
    """
    try:
        held = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TaskError(
            f"{where} is no JSON: {error}", hint="write [[[x, y], ...], ...]"
        ) from error
    return check_strokes(held.get("strokes") if isinstance(held, dict) else held, where)


# Handwritten words as frames: the movement of the pen, and whether it is on the paper.

D_FRAME = 6
BLUR = 0.2  # relative noise on lengths before words are bucketed by length
# Standard deviations of the distortions in `warp`, times a recipe's ``warp``.
SLANT, TILT, STRETCH, SHIFT = 0.3, 0.05, 0.15, 0.15
LEAP = 10.0  # steps: the unit of moves of the lifted pen, most of which are of this order


def pen_frames(
    points: Float[Tensor, "batch point 2"],
    is_last: Bool[Tensor, "batch point"],
    mask: Bool[Tensor, "batch point"],
) -> Frames:
    """For each frame: the move to the next point, drawn or lifted, pen state and height.

    Six numbers: x and y of the move if it is drawn (in steps), x and y if the pen is lifted (in
    tens of steps), 1 if it is lifted, y. The direction of writing and the state of the pen are the
    core of the features of Graves et al., 2009 ("A novel connectionist system for unconstrained
    handwriting recognition", section 2.2); what they add about the neighbourhood of a point is left
    to the network.
    """
    way = functional.pad(points[:, 1:] - points[:, :-1], (0, 0, 0, 1)) / STEP
    has_next = functional.pad(mask[:, 1:], (0, 1))
    way = way.where(has_next[:, :, None], 0.0)
    is_up = is_last[:, :, None]
    leap = (way / LEAP).clamp(-3.0, 3.0)
    parts = [way.where(~is_up, 0.0), leap.where(is_up, 0.0), is_up.float(), points[:, :, 1:]]
    return Frames(torch.cat(parts, dim=2).where(mask[:, :, None], 0.0), mask)


def warp(
    points: Float[Tensor, "batch point 2"], *, amount: float, generator: torch.Generator
) -> Float[Tensor, "batch point 2"]:
    """The words with random distortions: slanted, rotated, stretched and shifted."""
    drawn = amount * torch.randn(len(points), 5, 1, generator=generator)
    slant, tilt, wide, high, shift = drawn.unbind(1)
    x, y = points.unbind(2)
    x = (x + SLANT * slant * y) * (STRETCH * wide).exp()
    y = (y + TILT * tilt * x) * (STRETCH * high).exp() + SHIFT * shift
    return torch.stack([x, y], dim=2)


class PenBatches(Sequence[FrameBatch]):
    """The batches of one epoch: all words once, bucketed by length.

    A batch depends only on seed, epoch and its number, and is generated on demand.

    Args:
        warp: Strength of the distortions, 1 being about the variation between writers; with 0 words
            are unchanged and sorted by length. `rows` then gives their indices.
    """

    def __init__(
        self,
        words: PenWords,
        tokenizer: Tokenizer,
        *,
        batch: int,
        warp: float = 0.0,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        self.words, self.amount, self.seed = words, warp, seed
        self.text = tokenizer.encode_all(words.labels)
        self.places = Ragged(torch.arange(len(words.points)), words.starts)
        generator = generator_of(seed, epoch)
        blur = BLUR * torch.rand(len(words), generator=generator) if warp else 0.0
        parts = (words.lengths * (1 + blur)).argsort(stable=True).split(batch)
        shuffled = torch.randperm(len(parts), generator=generator).tolist()
        self.parts = [parts[at] for at in shuffled] if warp else list(parts)
        # Steps from 2^20 on are those of batches; epochs use the ones below.
        self.first = 2**20 + epoch * len(self.parts)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self.parts)

    def rows(self, number: int) -> Int[Tensor, " batch"]:
        """The indices of the words in the batch of this number."""
        return self.parts[number]

    def __getitem__(self, number: int) -> FrameBatch:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        at, mask = self.places.pad(self.parts[number])
        points = self.words.points[at]
        if self.amount:
            generator = generator_of(self.seed, self.first + number)
            points = warp(points, amount=self.amount, generator=generator)
        frames = pen_frames(points, self.words.is_last[at], mask)
        return FrameBatch(*frames, *self.text.pad(self.parts[number]))
