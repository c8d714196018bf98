"""Scenes of one to three MNIST digits, and captions that name each digit and its position.

``seven at the top , two at the bottom and four at the centre``: from left to right, with the height
of each. The digits are real, their positions random; the caption follows from both, and it is known
which word describes which digit. So attention itself can be evaluated: does the weight lie on the
digit that the word names? No word predicts which digit comes next, so looking ahead does not help.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.mnist import SIDE, Digits, as_images, pixels_of, windows_of
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD, SYMBOLS, Ragged, Vocabulary

# Images with captions: the training data of a captioner.


class Sentences(NamedTuple):
    """A batch of sentences. A decoder reads ``target_in`` and predicts ``target_out``."""

    target_in: Int[Tensor, "batch pos"]
    """Begins with BOS."""
    target_out: Int[Tensor, "batch pos"]
    """Ends in EOS."""
    target_mask: Bool[Tensor, "batch pos"]

    @classmethod
    def of(cls, target_out: Int[Tensor, "batch pos"]) -> Sentences:
        """From the target tokens, padded with PAD.

        >>> Sentences.of(torch.tensor([[7, 2, 0], [7, 8, 2]])).target_in
        tensor([[1, 7, 0], [1, 7, 8]])
        """
        mask = target_out != PAD
        before = torch.cat([torch.full_like(target_out[:, :1], BOS), target_out[:, :-1]], dim=1)
        return cls(before.where(mask, PAD), target_out, mask)

    @classmethod
    def encode(cls, texts: Sequence[Sequence[str]], vocabulary: Vocabulary) -> Sentences:
        """From sentences in words."""
        rows = Ragged.of([*vocabulary.encode(words), EOS] for words in texts)
        return cls.of(rows.pad(torch.arange(len(rows))).ids)

    def select(self, rows: Int[Tensor, " row"]) -> Sentences:
        """The given sentences, padded to the longest of them."""
        mask = self.target_mask[rows]
        width = int(mask.sum(1).max())
        return Sentences(
            self.target_in[rows, :width], self.target_out[rows, :width], mask[:, :width]
        )


class CaptionBatch(NamedTuple):
    """Images, or their feature maps, and a caption of each."""

    images: Float[Tensor, "batch channel height width"]
    sentences: Sentences


# The batches of an epoch of scenes or videos that are composed of a few digits each.

Made = TypeVar("Made")


class DigitEpoch(Sequence[Made], ABC, Generic[Made]):
    """Every digit is the first one of a scene or video once; the others are drawn at random.

    A batch depends only on seed, epoch and its number, and is generated on demand.

    Args:
        size: Side length of a scene or frame in pixels.
        in_order: The digits as they are stored, for validation and test.
    """

    n_together: ClassVar[int]
    """Maximum number of digits in a scene or video."""
    smallest: ClassVar[int]
    """Smallest side length in pixels."""
    why_so_large: ClassVar[str]
    """Why the side must be that long, for an error message."""

    def __init__(
        self,
        digits: Digits,
        *,
        size: int,
        batch: int,
        seed: int,
        epoch: int = 0,
        in_order: bool = False,
    ) -> None:
        if size < self.smallest:
            raise UsageError(
                f"expected a side of {self.smallest} pixels or more, got {size}",
                hint=self.why_so_large,
            )
        self.digits, self.size, self.seed = digits, size, seed
        n = len(digits.labels)
        shuffled = torch.randperm(n, generator=generator_of(seed, epoch))
        self.parts = (torch.arange(n) if in_order else shuffled).split(batch)
        self.first = 2**20 + epoch * len(self.parts)  # epochs use the steps below

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self.parts)

    def __getitem__(self, number: int) -> Made:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        if not 0 <= number < len(self.parts):
            raise IndexError(number)
        generator = generator_of(self.seed, self.first + number)
        first = self.parts[number][:, None]
        shape = (len(first), self.n_together - 1)
        others = torch.randint(0, len(self.digits.labels), shape, generator=generator)
        return self.make(torch.cat([first, others], 1), generator)

    @abstractmethod
    def make(self, chosen: Int[Tensor, "batch digit"], generator: torch.Generator) -> Made:
        """A batch of the given digits."""


# Sentences that describe one digit after the other, with the same number of words each.

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class DigitSentences(NamedTuple):
    """Words, and which digit each is about."""

    words: Int[Tensor, "batch pos"]
    about: Int[Tensor, "batch pos"]
    """The digit that a word describes; -1 for all other words."""

    @classmethod
    def of(
        cls,
        words: Int[Tensor, "batch digit word"],
        *,
        n_told: Int[Tensor, "batch 1"],
        telling: tuple[int, ...],
    ) -> DigitSentences:
        """The sentences of the first digits; the others are not described.

        Args:
            telling: Which words of a digit describe it.

        >>> words = torch.tensor([[[11, 4, 5], [12, 4, 2]], [[13, 4, 2], [14, 4, 2]]])
        >>> made = DigitSentences.of(words, n_told=torch.tensor([[2], [1]]), telling=(0,))
        >>> made.words.tolist()
        [[11, 4, 5, 12, 4, 2], [13, 4, 2, 0, 0, 0]]
        >>> made.about.tolist()
        [[0, -1, -1, 1, -1, -1], [0, -1, -1, -1, -1, -1]]
        """
        digit = torch.arange(words.shape[1])[:, None]  # [digit, 1]
        about = torch.full_like(words, -1)
        about[:, :, list(telling)] = digit
        is_said = digit < n_told[:, :, None]
        return cls(words.where(is_said, PAD).flatten(1), about.where(is_said, -1).flatten(1))


MOST = 3
"""Maximum number of digits in a scene."""
HEIGHTS = ("top", "centre", "bottom")
LINKS = ("at", "the", ",", "and")
VOCABULARY = Vocabulary((*SYMBOLS, *NAMES, *HEIGHTS, *LINKS))
"""All words of these sentences."""
N_WORDS = 5
"""About one digit, with what links it to the next or ends the sentence."""
NAME, HEIGHT = 0, 3  # which of them is the name, and which the height
# Minimum distance of the left edges of two digits in pixels: their order must be clear.
APART = 8
# Layouts drawn at once; the first in which no digits overlap is taken. With three digits on 88
# pixels one of twelve is valid, so the probability that none is valid is below 1e-9.
LAYOUTS = 256
SMALLEST = 84  # side length in pixels: three digits in a row


class SceneBatch(NamedTuple):
    """Scenes, a caption of each, and the digit that each word describes."""

    images: Float[Tensor, "batch 1 height width"]
    """0 is background, 1 is ink."""
    sentences: Sentences
    about: Int[Tensor, "batch pos"]
    """The digit whose name or height a word gives; -1 for all other words."""
    windows: Float[Tensor, "batch digit 4"]
    """``x, y, half_width, half_height`` of each digit's square, left to right."""


class CaptionScenes(DigitEpoch[SceneBatch]):
    """The batches of one epoch; every digit is the first one of a scene once."""

    n_together = MOST
    smallest = SMALLEST
    why_so_large = f"{MOST} digits in a row must fit; 88 leaves some room"

    def make(self, chosen: Int[Tensor, "batch digit"], generator: torch.Generator) -> SceneBatch:
        """A batch of the given digits."""
        return make_caption_scenes(self.digits, chosen, size=self.size, generator=generator)


def make_caption_scenes(
    digits: Digits, chosen: Int[Tensor, "batch digit"], *, size: int, generator: torch.Generator
) -> SceneBatch:
    """A batch of scenes in one operation.

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

    A height is a quarter of the possible rows of a corner, with gaps between: none is ambiguous.
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
    left = n_shown - torch.arange(MOST)  # digits still to be described, this one included
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
