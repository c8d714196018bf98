"""Scenes of one to three MNIST digits, and sentences that say which digit is where.

``seven at the top , two at the bottom and four at the centre``: from left to right, with the height
of each. The digits are real, their places random; the sentence follows from both, and it is known
which word is about which digit. So attention itself can be judged: does the weight lie on the digit
that the word names? No word tells what the next one will be about, so nothing is gained by looking
before it is time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.tasks.captions import Sentences
from saccade.tasks.digit_epoch import DigitEpoch
from saccade.tasks.digit_sentences import NAMES, DigitSentences
from saccade.tasks.images import as_images
from saccade.tasks.mnist import Digits
from saccade.tasks.scenes import SIDE, pixels_of, windows_of
from saccade.tasks.symbols import EOS, SYMBOLS
from saccade.tasks.vocabulary import Vocabulary

MOST = 3
"""Digits in a scene at most."""
HEIGHTS = ("top", "centre", "bottom")
LINKS = ("at", "the", ",", "and")
VOCABULARY = Vocabulary((*SYMBOLS, *NAMES, *HEIGHTS, *LINKS))
"""All words of these sentences."""
N_WORDS = 5
"""About one digit, with what links it to the next or ends the sentence."""
NAME, HEIGHT = 0, 3  # which of them is the name, and which the height
# Pixels between the left edges of two digits at least: it must be clear which comes first.
APART = 8
# Layouts drawn at once; the first in which no digits overlap is taken. One of twelve of three
# digits will do on 88 pixels, so that none does is less likely than one in a thousand million.
LAYOUTS = 256
SMALLEST = 84  # pixels of the side: three digits in a row


class SceneBatch(NamedTuple):
    """Scenes, a sentence about each, and what each word of it is about."""

    images: Float[Tensor, "batch 1 height width"]
    """0 is paper, 1 is ink."""
    sentences: Sentences
    about: Int[Tensor, "batch pos"]
    """The digit that a word names, or whose height it tells; -1 for all other words."""
    windows: Float[Tensor, "batch digit 4"]
    """``x, y, half_width, half_height`` of each digit's square, left to right."""


class CaptionScenes(DigitEpoch[SceneBatch]):
    """The batches of one epoch; every digit is the first one of a scene once."""

    n_together = MOST
    smallest = SMALLEST
    why_so_large = f"{MOST} digits stand in a row at most; 88 leaves them some room"

    def make(self, chosen: Int[Tensor, "batch digit"], generator: torch.Generator) -> SceneBatch:
        """A batch of these digits."""
        return make_caption_scenes(self.digits, chosen, size=self.size, generator=generator)


def make_caption_scenes(
    digits: Digits, chosen: Int[Tensor, "batch digit"], *, size: int, generator: torch.Generator
) -> SceneBatch:
    """A batch of scenes in one go.

    Args:
        chosen: The digits of each scene; the first one, two or three of them are shown.
    """
    n = len(chosen)
    n_shown = torch.randint(1, MOST + 1, (n, 1), generator=generator)
    is_shown = torch.arange(MOST) < n_shown  # [batch, digit]
    heights, corners = _layout(is_shown, size, generator)
    # Those that are not shown come last.
    order = corners[:, :, 1].where(is_shown, size).argsort(dim=1, stable=True)
    corners = corners.gather(1, order[:, :, None].expand_as(corners))
    heights, chosen = heights.gather(1, order), chosen.gather(1, order)
    pixels = digits.images[chosen] * is_shown[:, :, None, None]
    canvas = torch.zeros(n, size * size, dtype=torch.uint8)
    canvas.scatter_reduce_(1, pixels_of(corners, SIDE, size), pixels.flatten(1), "amax")
    said, about = _say(digits.labels[chosen], heights, n_shown)
    return SceneBatch(
        as_images(canvas.view(n, 1, size, size)),
        Sentences.of(said),
        about,
        windows_of(corners, size),
    )


class _Layout(NamedTuple):
    heights: Int[Tensor, "batch digit"]
    corners: Int[Tensor, "batch digit 2"]


def _layout(
    is_shown: Bool[Tensor, "batch digit"], size: int, generator: torch.Generator
) -> _Layout:
    """Row and column of each digit's upper left corner.

    A height is a quarter of the rows where a corner can be, with gaps between: none is in doubt.
    """
    shape = (len(is_shown), LAYOUTS, MOST)
    room, quarter = size - SIDE, (size - SIDE) // 4
    starts = torch.tensor([0, (room - quarter) // 2, room - quarter])
    heights = torch.randint(0, len(HEIGHTS), shape, generator=generator)
    rows = starts[heights] + torch.randint(0, quarter + 1, shape, generator=generator)
    columns = torch.randint(0, room + 1, shape, generator=generator)
    tried = torch.stack([rows, columns], dim=-1)
    way = (tried[:, :, :, None] - tried[:, :, None]).abs()  # [batch, layout, digit, digit, 2]
    is_clear = (way.amax(-1) >= SIDE) & (way[..., 1] >= APART)
    is_pair = is_shown[:, :, None] & is_shown[:, None] & ~torch.eye(MOST, dtype=torch.bool)
    is_good = (is_clear | ~is_pair[:, None]).flatten(2).all(-1)
    first = is_good.to(torch.uint8).argmax(1)
    every = torch.arange(len(is_shown))
    return _Layout(heights[every, first], tried[every, first])


def _say(
    labels: Int[Tensor, "batch digit"],
    heights: Int[Tensor, "batch digit"],
    n_shown: Int[Tensor, "batch 1"],
) -> DigitSentences:
    """The sentences: five words a digit, of which the last links it to the next or is the end."""
    at, the, comma, and_ = VOCABULARY.encode(LINKS)
    left = n_shown - torch.arange(MOST)  # digits still to be told, this one counted
    link = torch.where(left > 2, comma, torch.where(left == 2, and_, EOS))
    words = torch.stack(
        [
            labels + VOCABULARY.ids[NAMES[0]],
            torch.full_like(labels, at),
            torch.full_like(labels, the),
            heights + VOCABULARY.ids[HEIGHTS[0]],
            link,
        ],
        dim=2,
    )  # [batch, digit, word]
    return DigitSentences.of(words, n_told=n_shown, telling=(NAME, HEIGHT))
