"""Scenes: MNIST digits somewhere on a larger canvas, among pieces of other digits.

Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), section 4.1: translated MNIST puts a digit at a
random place of an empty canvas, the cluttered form then adds 8 x 8 pieces of other random digits at
random places: 4 of them on 60 x 60, 8 on 100 x 100 pixels. Ba et al., 2015
(https://arxiv.org/abs/1412.7755), section 5.1: two digits on 100 x 100 pixels "with distraction
noise"; what is asked is both digits, or their sum.

Where we differ: scenes are made anew for every epoch instead of once, and where two things overlap
the darker one shows. Ba et al. do not say what their noise is; ours are the pieces of Mnih et al.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from saccade.errors import UsageError
from saccade.zoo.tasks.curricula import generator_of
from saccade.zoo.tasks.mnist import Digits, ImageBatch, as_images

SIDE = 28  # pixels of a digit's square
LAYOUTS = 32  # that are drawn at once; the first in which no digits overlap is taken
# Far from the seeds of trainings, which are small.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is on a canvas."""

    size: int = SIDE
    """Pixels of its side; 28 is the digit as it is."""
    n_digits: int = 1
    """They never overlap."""
    n_clutter: int = 0
    """Pieces of other digits."""
    clutter_size: int = 8
    """Pixels of the side of such a piece."""
    wander: int = 0
    """Every digit is moved by up to so many pixels either way, around the edge if need be."""
    asks: Literal["digits", "sum"] = "digits"
    """What the label is."""

    def __post_init__(self) -> None:
        least = SIDE if self.n_digits == 1 else SIDE * (self.n_digits + 1)
        if self.size < least:
            raise UsageError(
                f"expected a canvas of {least} pixels or more for n_digits {self.n_digits}, "
                f"got {self.size}",
                hint="60 and 100 are the published sizes",
            )
        if not 1 <= self.clutter_size <= SIDE:
            raise UsageError(
                f"clutter is cut out of digits: 1 to {SIDE} pixels, got {self.clutter_size}",
                hint="8 is the published size",
            )


def make_scenes(
    digits: Digits,
    chosen: Int[Tensor, "batch n_digits"],
    *,
    scene: Scene,
    generator: torch.Generator,
) -> ImageBatch:
    """A batch of scenes in one go: every pixel of every piece is written by one operation.

    Args:
        chosen: Which digits are shown; their places, and all clutter, are drawn at random.
    """
    n, size = len(chosen), scene.size
    corners = _layout(n, scene, generator)  # [batch, digit, 2]
    order = corners[:, :, 1].argsort(dim=1, stable=True)
    corners = corners.gather(1, order[:, :, None].expand_as(corners))
    chosen = chosen.gather(1, order)
    corners = corners + _drawn((n, scene.n_digits, 2), -scene.wander, scene.wander, generator)
    canvas = torch.zeros(n, size * size, dtype=torch.uint8)
    places = [pixels_of(corners, SIDE, size)]
    values = [digits.images[chosen].flatten(1)]
    if scene.n_clutter:
        shape, side = (n, scene.n_clutter, 2), scene.clutter_size
        corner = _drawn(shape, 0, size - side, generator)
        places.append(pixels_of(corner, side, size))
        values.append(_pieces(digits.images, scene, n, generator))
    # The largest of all that falls on a pixel: scatter alone would keep any one of them.
    canvas.scatter_reduce_(1, torch.cat(places, 1), torch.cat(values, 1), "amax")
    labels = digits.labels[chosen]
    labels = labels.sum(1) if scene.asks == "sum" else labels.squeeze(1)
    return ImageBatch(as_images(canvas.view(n, size, size)), labels, windows_of(corners, size))


class Scenes(Sequence[ImageBatch]):
    """The batches of one epoch; every digit is the first one of a scene once.

    A batch depends on seed, epoch and its number alone, and is made when it is asked for.

    Args:
        in_order: The digits as they are stored, for validation and test.
    """

    def __init__(
        self,
        digits: Digits,
        scene: Scene,
        *,
        batch: int,
        seed: int,
        epoch: int = 0,
        in_order: bool = False,
    ) -> None:
        self.digits, self.scene, self.seed = digits, scene, seed
        n = len(digits.labels)
        shuffled = torch.randperm(n, generator=generator_of(seed, epoch))
        self.parts = (torch.arange(n) if in_order else shuffled).split(batch)
        # After all epochs: numbers from 2^20 on are those of batches.
        self.first = 2**20 + epoch * len(self.parts)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.parts)

    def __getitem__(self, number: int) -> ImageBatch:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        generator = generator_of(self.seed, self.first + number)
        first = self.parts[number][:, None]
        shape = (len(first), self.scene.n_digits - 1)
        others = torch.randint(0, len(self.digits.labels), shape, generator=generator)
        chosen = torch.cat([first, others], dim=1)
        return make_scenes(self.digits, chosen, scene=self.scene, generator=generator)


def _drawn(shape: tuple[int, ...], least: int, most: int, generator: torch.Generator) -> Tensor:
    return torch.randint(least, most + 1, shape, generator=generator)


def _layout(n: int, scene: Scene, generator: torch.Generator) -> Int[Tensor, "batch n_digits 2"]:
    """The upper left corner, (row, column), of each digit: any layout without overlap is as likely.

    That some scene has none among its `LAYOUTS` is less likely than one in a hundred million.
    """
    if scene.n_digits == 1:
        return _drawn((n, 1, 2), 0, scene.size - SIDE, generator)
    tried = _drawn((n, LAYOUTS, scene.n_digits, 2), 0, scene.size - SIDE, generator)
    apart = (tried[:, :, :, None] - tried[:, :, None]).abs().amax(-1) >= SIDE
    apart |= torch.eye(scene.n_digits, dtype=torch.bool)  # a digit may overlap itself
    first = apart.all(-1).all(-1).to(torch.uint8).argmax(1)
    return tried[torch.arange(n), first]


def pixels_of(
    corners: Int[Tensor, "batch piece 2"], side: int, size: int
) -> Int[Tensor, "batch at"]:
    """Where on the flat canvas each pixel of square pieces falls."""
    along = torch.arange(side)
    rows = (corners[:, :, 0, None] + along) % size  # [batch, piece, side]
    columns = (corners[:, :, 1, None] + along) % size
    return (rows[:, :, :, None] * size + columns[:, :, None]).flatten(1)


def _pieces(
    images: UInt8[Tensor, "image height width"], scene: Scene, n: int, generator: torch.Generator
) -> UInt8[Tensor, "batch at"]:
    """The pixels of random pieces of random digits."""
    side = scene.clutter_size
    of = _drawn((n, scene.n_clutter, 1), 0, len(images) - 1, generator)
    corner = _drawn((n, scene.n_clutter, 2), 0, SIDE - side, generator)
    inside = pixels_of(corner, side, SIDE).view(n, scene.n_clutter, -1)
    return images.flatten()[(of * SIDE * SIDE + inside).flatten(1)]


def windows_of(
    corners: Int[Tensor, "batch n_digits 2"], size: int
) -> Float[Tensor, "batch n_digits 4"]:
    """The digits' squares as windows."""
    centres = (2 * corners.flip(-1) + SIDE) / size - 1  # [batch, digit, (x, y)]
    return torch.cat([centres, torch.full_like(centres, SIDE / size)], dim=2)
