"""Handwritten words as pen strokes: lower-case words of UNIPEN, split by who wrote them.

UNIPEN, train_r01_v07 (Guyon et al., 1994, "UNIPEN project of on-line data exchange and recognizer
benchmarks"), one word a line: ``{"writer", "label", "strokes": [[[x, y], ...], ...]}``.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import TaskError
from saccade.tasks.fetch import find_data
from saccade.tasks.pen_points import Stroke, resample
from saccade.tasks.text_files import read_lines

# Of twenty parts of the persons, by a hash of their names.
TEST_PARTS, VALID_PARTS = {0, 1}, {2}


@dataclass(frozen=True)
class PenWords:
    """Words as evenly spaced points of one scale, laid end to end."""

    points: Float[Tensor, "point 2"]
    """x to the right and y upwards, in spreads of the word's height; see `resample`."""
    is_last: Bool[Tensor, " point"]
    """The pen is lifted after this point."""
    starts: Int[Tensor, " row_or_end"]
    """Where each word begins, and at last the number of points."""
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
    """Words to learn from, to choose by and to report; no person is in two of them."""

    train: PenWords
    valid: PenWords
    test: PenWords


def read_pen_words(data: str | Path | None = None) -> PenSplits:
    """All words, split by person: of 274 about a tenth is the test, a twentieth to choose by."""
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
    """Words of these strokes, made comparable."""
    found = resample(strokes)
    return PenWords(found.points, found.is_last, found.starts, tuple(labels))


def check_strokes(strokes: Any, where: str) -> list[Stroke]:
    """The strokes of a word as arrays of points; refuses what are none.

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
    """Who wrote a file, as far as its name tells.

    Files of one person have the same letters before different numbers (sessions, pages), in
    folders of different sessions. Where several persons share their letters (``app0742``,
    ``app1143``) they are taken for one, which does no harm: none of them is in two parts.

    >>> [person_of(name) for name in ("sta/sta0/hpb0-cb.dat", "sta/sta1/hpb1-cb.dat", "a/Al2.dat")]
    ['cb', 'cb', 'al']
    """
    name = re.sub(r"^hpb\d-?", "", Path(writer).stem.lower())
    letters = re.search("[a-z]+", name)
    return letters[0] if letters else Path(writer).parent.as_posix()


def part_of(person: str) -> int:
    """The part a person belongs to: 0 to learn from, 1 to choose by, 2 to report."""
    # Not Python's own hash, which differs from process to process.
    part = zlib.crc32(person.encode()) % 20
    return 2 if part in TEST_PARTS else 1 if part in VALID_PARTS else 0


def read_pen_file(path: str | Path) -> list[Stroke]:
    """The strokes of one word from a JSON file of the user's, alone or under ``strokes``."""
    try:
        held = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TaskError(
            f"could not read {path}: {error.strerror or error}", hint="check the path"
        ) from error
    except ValueError as error:
        raise TaskError(f"{path} is no JSON: {error}", hint="write [[[x, y], ...], ...]") from error
    return check_strokes(held.get("strokes") if isinstance(held, dict) else held, str(path))
