"""Pen strokes made comparable: one scale, and points that lie evenly along the ink."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

Stroke = Float64[np.ndarray, "_ 2"]

STEP = 0.4
"""How far apart points are, in spreads of the word's height: some fifteen a letter."""

FLATTEST = 300  # times its spread is the most that a word's ink is taken to be long


class Resampled(NamedTuple):
    """The points of many words, laid end to end."""

    points: Float[Tensor, "point 2"]
    is_last: Bool[Tensor, " point"]
    """Of its stroke."""
    starts: Int[Tensor, " row_or_end"]


def resample(words: Sequence[Sequence[Stroke]]) -> Resampled:
    """Put points at equal distances along each stroke, all words at once.

    Pens report points at equal times, devices at different rates and in different units, and slow
    writers have many: none of this tells what was written. Jaeger et al., 2001 ("Online handwriting
    recognition: the NPen++ recognizer"), section 3, do the same. A word's unit is the spread (the
    standard deviation along the ink) of its height, and y is 0 in its middle; x begins at 0.

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
    """Each word in spreads of its own height, weighed by ink."""
    ink = np.where(is_last, 0.0, _distances(points))
    y = points[:, 1]
    after = np.append(y[1:], y[-1:])
    total = np.bincount(word_of, ink, minlength=n_words)
    is_ink = total > 0  # a word of dots alone has no ink to weigh by
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
