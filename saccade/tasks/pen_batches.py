"""Handwritten words as frames: where the pen goes next, and whether it is on the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from saccade.tasks.coder import Coder
from saccade.tasks.frame_batch import FrameBatch, Frames
from saccade.tasks.pen_points import STEP
from saccade.tasks.pen_words import PenWords
from saccade.tasks.ragged import Ragged
from saccade.tasks.step_seed import generator_of

D_FRAME = 6
BLUR = 0.2  # by how much lengths are blurred before words are put together by length
# Standard deviations of how a hand may differ, in `warp`, times a recipe's ``warp``.
SLANT, TILT, STRETCH, SHIFT = 0.3, 0.05, 0.15, 0.15
LEAP = 10.0  # steps: leaps of the lifted pen are given in these, since most are of this order


def pen_frames(
    points: Float[Tensor, "batch point 2"],
    is_last: Bool[Tensor, "batch point"],
    mask: Bool[Tensor, "batch point"],
) -> Frames:
    """Frame by frame: the way to the next point, drawn or leapt, whether it is leapt, the height.

    Six numbers: x and y of the way if it is drawn (in steps), x and y if the pen is lifted (in
    leaps of ten), 1 if it is lifted, y. The direction of writing and the state of the pen are the
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
    """The words as other hands might have written them: slanted, tilted, stretched and shifted."""
    drawn = amount * torch.randn(len(points), 5, 1, generator=generator)
    slant, tilt, wide, high, shift = drawn.unbind(1)
    x, y = points.unbind(2)
    x = (x + SLANT * slant * y) * (STRETCH * wide).exp()
    y = (y + TILT * tilt * x) * (STRETCH * high).exp() + SHIFT * shift
    return torch.stack([x, y], dim=2)


class PenBatches(Sequence[FrameBatch]):
    """The batches of one epoch: all words once, those of about one length together.

    A batch depends on seed, epoch and its number alone, and is made when it is asked for.

    Args:
        warp: How much words are changed, 1 being as much as hands differ; with 0 they are as they
            are, and come in the order of their lengths. `rows` then says which they are.
    """

    def __init__(
        self,
        words: PenWords,
        coder: Coder,
        *,
        batch: int,
        warp: float = 0.0,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        self.words, self.amount, self.seed = words, warp, seed
        self.text = coder.encode_all(words.labels)
        self.places = Ragged(torch.arange(len(words.points)), words.starts)
        generator = generator_of(seed, epoch)
        blur = BLUR * torch.rand(len(words), generator=generator) if warp else 0.0
        parts = (words.lengths * (1 + blur)).argsort(stable=True).split(batch)
        shuffled = torch.randperm(len(parts), generator=generator).tolist()
        self.parts = [parts[at] for at in shuffled] if warp else list(parts)
        # After all epochs: numbers from 2^20 on are those of batches.
        self.first = 2**20 + epoch * len(self.parts)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.parts)

    def rows(self, number: int) -> Int[Tensor, " batch"]:
        """Which words the batch of this number holds."""
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
