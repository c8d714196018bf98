"""Films of MNIST digits that come one after the other and move, and sentences that tell of them.

``seven moves left then two moves up``: the digits are real, their motion is made, and it is known
in which frames each is seen. So attention over time can be judged as that over an image is in
`saccade.tasks.caption_scenes`. A single frame shows which digit it is and not where it goes.

The films stand where Yao et al., 2015 (https://arxiv.org/abs/1502.08029) have YouTube2Text.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.tasks.captions import Sentences
from saccade.tasks.digit_epoch import DigitEpoch
from saccade.tasks.digit_sentences import NAMES, DigitSentences
from saccade.tasks.images import as_images
from saccade.tasks.mnist import Digits
from saccade.tasks.scenes import SIDE, pixels_of
from saccade.tasks.symbols import EOS, SYMBOLS
from saccade.tasks.vocabulary import Vocabulary

N_FRAMES = 16
MOST = 3
"""Digits in a film at most."""
SHORTEST, LONGEST = 4, 5
"""Frames in which one of them is seen; three times the longest is a film."""
SPEED = 2  # pixels a frame
WAYS = ("up", "down", "left", "right")
STEPS = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])
"""Of each way: rows and columns."""
VOCABULARY = Vocabulary((*SYMBOLS, *NAMES, *WAYS, "moves", "then"))
"""All words of these sentences."""
N_WORDS = 4
"""About one digit, with what links it to the next or ends the sentence."""
NAME, WAY = 0, 2  # which of them is the name, and which tells the way
REACH = SPEED * (LONGEST - 1)  # pixels that a digit moves at most


class FilmBatch(NamedTuple):
    """Films, a sentence about each, and what each word of it is about."""

    frames: Float[Tensor, "batch frame 1 height width"]
    """0 is paper, 1 is ink."""
    sentences: Sentences
    about: Int[Tensor, "batch pos"]
    """The digit that a word names, or whose way it tells; -1 for all other words."""
    spans: Int[Tensor, "batch digit 2"]
    """The first frame in which each digit is seen, and the first in which it is gone."""


class MovingDigits(DigitEpoch[FilmBatch]):
    """The batches of one epoch; every digit is the first one of a film once."""

    n_together = MOST
    smallest = SIDE + REACH
    why_so_large = f"a digit has {SIDE}, and must have room to move"

    def make(self, chosen: Int[Tensor, "batch digit"], generator: torch.Generator) -> FilmBatch:
        """A batch of these digits."""
        return make_films(self.digits, chosen, size=self.size, generator=generator)


def make_films(
    digits: Digits, chosen: Int[Tensor, "batch digit"], *, size: int, generator: torch.Generator
) -> FilmBatch:
    """A batch of films in one go.

    Args:
        chosen: The digits of each film; the first one, two or three of them are seen.
    """
    n = len(chosen)
    n_seen = torch.randint(1, MOST + 1, (n, 1), generator=generator)
    spans = _spans(n_seen, generator)
    ways = torch.randint(0, len(WAYS), (n, MOST), generator=generator)
    frames = _film(digits, chosen, spans, ways, size=size, generator=generator)
    said, about = _say(digits.labels[chosen], ways, n_seen)
    return FilmBatch(as_images(frames), Sentences.of(said), about, spans)


def _spans(
    n_seen: Int[Tensor, "batch 1"], generator: torch.Generator
) -> Int[Tensor, "batch digit 2"]:
    """When each digit is seen: one after the other, with the frames that are left in between."""
    shape = (len(n_seen), MOST)
    lasting = torch.randint(SHORTEST, LONGEST + 1, shape, generator=generator)
    lasting = lasting.where(torch.arange(MOST) < n_seen, 0)
    left = N_FRAMES - lasting.sum(1, keepdim=True)
    # Sorted draws cut what is left into gaps: before each digit, and after the last.
    waits = (torch.rand(shape, generator=generator) * (left + 1)).long().sort(1).values
    ends = lasting.cumsum(1) + waits
    return torch.stack([ends - lasting, ends], dim=2)


def _film(
    digits: Digits,
    chosen: Int[Tensor, "batch digit"],
    spans: Int[Tensor, "batch digit 2"],
    ways: Int[Tensor, "batch digit"],
    *,
    size: int,
    generator: torch.Generator,
) -> Tensor:
    """The frames: every pixel of every digit in every frame is written by one operation."""
    n, room = len(chosen), size - SIDE
    frame = torch.arange(N_FRAMES)[:, None]  # [frame, 1]
    since = frame - spans[:, None, :, 0]  # [batch, frame, digit]
    is_seen = (since >= 0) & (frame < spans[:, None, :, 1])
    way = STEPS[ways]  # [batch, digit, 2]
    # Along its way a digit begins where the rest of the way is free, across it anywhere.
    across = torch.randint(0, room + 1, (n, MOST, 2), generator=generator)
    along = torch.randint(0, room - REACH + 1, (n, MOST, 2), generator=generator)
    start = torch.where(way == 0, across, torch.where(way > 0, along, room - along))
    corners = start[:, None] + SPEED * way[:, None] * since.clamp(0, LONGEST - 1)[..., None]
    pixels = digits.images[chosen].flatten(2)[:, None] * is_seen[..., None]
    canvas = torch.zeros(n * N_FRAMES, size * size, dtype=torch.uint8)
    places = pixels_of(corners.flatten(0, 1), SIDE, size)
    canvas.scatter_reduce_(1, places, pixels.flatten(0, 1).flatten(1), "amax")
    return canvas.view(n, N_FRAMES, 1, size, size)


def _say(
    labels: Int[Tensor, "batch digit"],
    ways: Int[Tensor, "batch digit"],
    n_seen: Int[Tensor, "batch 1"],
) -> DigitSentences:
    """The sentences: four words a digit, of which the last links it to the next or is the end."""
    moves, then = VOCABULARY.encode(["moves", "then"])
    left = n_seen - torch.arange(MOST)  # digits still to be told, this one counted
    words = torch.stack(
        [
            labels + VOCABULARY.ids[NAMES[0]],
            torch.full_like(labels, moves),
            ways + VOCABULARY.ids[WAYS[0]],
            torch.where(left > 1, then, EOS),
        ],
        dim=2,
    )  # [batch, digit, word]
    return DigitSentences.of(words, n_told=n_seen, telling=(NAME, WAY))
