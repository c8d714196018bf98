"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, alone and in larger scenes."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks.datasets import find_data, generator_of

# IDX files: the format in which MNIST is published.

UNSIGNED_BYTE = 0x08
GZIP = b"\x1f\x8b"


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """The array in an IDX file of unsigned bytes, packed with gzip or not.

    The format (from the MNIST page): two zero bytes, one for the type, one for the number of axes;
    the axes as 32-bit numbers, most significant byte first; the values, last axis fastest.
    """
    data = _bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0":
        raise TaskError(
            f"{path} is no IDX file: it begins with {data[:4].hex(' ') or 'nothing'}",
            hint="fetch it again",
        )
    if data[2] != UNSIGNED_BYTE:
        raise TaskError(
            f"{path} holds values of type 0x{data[2]:02x}, expected 0x08 (unsigned bytes)",
            hint="only images and labels in bytes are read",
        )
    begin = 4 + 4 * data[3]
    axes = range(4, min(begin, len(data)), 4)
    shape = tuple(int.from_bytes(data[place : place + 4], "big") for place in axes)
    found, expected = len(data) - begin, math.prod(shape)
    if found != expected:
        raise TaskError(
            f"{path} is cut short or too long: expected {expected} values of shape {shape}, "
            f"found {max(found, 0)}",
            hint="fetch it again",
        )
    values = np.frombuffer(data, dtype=np.uint8, offset=begin).reshape(shape)
    return torch.from_numpy(values.copy())


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == GZIP else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TaskError(f"{path} is a broken archive: {error}", hint="fetch it again") from error
    except OSError as error:
        raise TaskError(
            f"could not read {path}: {error.strerror or error}", hint="check the path"
        ) from error


# Images with labels: the training data of every visual system.


class ImageBatch(NamedTuple):
    """Grey images, their labels, and the positions of the digits.

    Positions are in the convention of `saccade.zoo.sensors`.
    """

    images: Float[Tensor, "batch height width"]
    """0 is background, 1 is ink."""
    labels: Int[Tensor, "batch ..."]
    """The digit; with several in an image one each, from left to right; or their sum."""
    windows: Float[Tensor, "batch n_digits 4"]
    """``x, y, half_width, half_height`` of each digit's square, left to right."""


def as_images(images: UInt8[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Bytes as floats from 0 to 1."""
    return images / 255


N_VALID = 5000
"""The last images of the published training part; the test part stays untouched."""


class Digits(NamedTuple):
    """Images and their labels."""

    images: UInt8[Tensor, "image height width"]
    labels: Int[Tensor, " image"]


def read_mnist(part: Literal["train", "valid", "test"], data: str | Path | None = None) -> Digits:
    """One part: 55,000 for training, 5,000 for validation, 10,000 for test."""
    folder = find_data("mnist", data)
    prefix = "t10k" if part == "test" else "train"
    images = read_idx(_file(folder, f"{prefix}-images-idx3-ubyte"))
    labels = read_idx(_file(folder, f"{prefix}-labels-idx1-ubyte")).long()
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise TaskError(
            f"the {prefix} part in {folder} is inconsistent: images of shape "
            f"{tuple(images.shape)}, labels of shape {tuple(labels.shape)}",
            hint="fetch it again",
        )
    cut = {"train": slice(None, -N_VALID), "valid": slice(-N_VALID, None), "test": slice(None)}
    return Digits(images[cut[part]], labels[cut[part]])


def _file(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.gz"
    return packed if packed.is_file() else folder / name


# Binarised MNIST: each pixel is drawn with its grey value as probability.
#
# Salakhutdinov and Murray, 2008 (https://doi.org/10.1145/1390156.1390266): generative models are
# compared by the likelihood of such digits. Their fixed sample is a separate file that is not part
# of MNIST. Here training digits are sampled anew every epoch, and held-out digits once, from a
# fixed seed: the same distribution, so the metrics can be compared, but not the same pixels.


def binarise(
    images: UInt8[Tensor, "batch height width"], generator: torch.Generator
) -> Float[Tensor, "batch height width"]:
    """Each pixel 1 with its grey value as probability, else 0.

    >>> half = torch.full((1, 100, 100), 128, dtype=torch.uint8)
    >>> drawn = binarise(half, torch.Generator().manual_seed(0))
    >>> sorted(set(drawn.flatten().tolist())), round(drawn.mean().item(), 1)
    ([0.0, 1.0], 0.5)
    """
    return torch.bernoulli(as_images(images), generator=generator)


class BinarisedDigits(Sequence[Tensor]):
    """The batches of one epoch: all digits once, sampled anew.

    A batch depends only on seed, epoch and its number, and is generated on demand.
    """

    def __init__(self, digits: Digits, *, batch: int, seed: int, epoch: int) -> None:
        self.digits, self.seed = digits, seed
        order = torch.randperm(len(digits.labels), generator=generator_of(seed, epoch))
        self.parts = order.split(batch)
        # Steps from 2^20 on are those of batches; epochs use the ones below.
        self.first = 2**20 + epoch * len(self.parts)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self.parts)

    def __getitem__(self, number: int) -> Float[Tensor, "batch height width"]:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        images = self.digits.images[self.parts[number]]
        return binarise(images, generator_of(self.seed, self.first + number))


# MNIST as a sequence: a digit read row by row, or pixel by pixel.


class RowBatch(NamedTuple):
    """Digits as sequences, and their labels."""

    inputs: Float[Tensor, "batch pos d_input"]
    labels: Int[Tensor, " batch"]


def as_rows(images: UInt8[Tensor, "batch height width"]) -> Float[Tensor, "batch height width"]:
    """A step for each row, ink as 1 and background as 0: 28 steps of 28 numbers."""
    return images.float() / 255


def as_pixels(images: UInt8[Tensor, "batch height width"]) -> Float[Tensor, "batch pos 1"]:
    """A step for each pixel, in reading order: 784 steps of one number (Le et al., 2015)."""
    return as_rows(images).flatten(1)[:, :, None]


def row_batches(digits: Digits, *, batch: int, seed: int, epoch: int) -> Iterator[RowBatch]:
    """All digits once, in the order of one epoch; the last batch may be smaller."""
    order = torch.randperm(len(digits.labels), generator=generator_of(seed, epoch))
    for some in order.split(batch):
        yield RowBatch(as_rows(digits.images[some]), digits.labels[some])


# Scenes: MNIST digits at random positions of a larger canvas, among pieces of other digits.
#
# Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), section 4.1: translated MNIST puts a digit at
# a random position of an empty canvas, the cluttered form then adds 8 x 8 pieces of other random
# digits at random positions: 4 of them on 60 x 60, 8 on 100 x 100 pixels. Ba et al., 2015
# (https://arxiv.org/abs/1412.7755), section 5.1: two digits on 100 x 100 pixels "with distraction
# noise"; the label is both digits, or their sum.
#
# Where we differ: scenes are generated anew for every epoch instead of once, and where two pieces
# overlap the darker pixel is kept. Ba et al. do not specify their noise; ours are the pieces of
# Mnih et al.

SIDE = 28  # pixels of a digit's square
LAYOUTS = 32  # layouts drawn at once; the first in which no digits overlap is used
# Far from the seeds of training runs, which are small.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The content of a canvas."""

    size: int = SIDE
    """Side length in pixels; 28 is the original digit."""
    n_digits: int = 1
    """They never overlap."""
    n_clutter: int = 0
    """Pieces of other digits."""
    clutter_size: int = 8
    """Side length of such a piece in pixels."""
    max_shift: int = 0
    """Maximum shift of every digit in pixels, in each direction; it wraps around at the edge."""
    asks: Literal["digits", "sum"] = "digits"
    """The label: the digits, or their sum."""

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
    """A batch of scenes: every pixel of every piece is written by one operation.

    Args:
        chosen: Which digits are shown; their positions, and all clutter, are drawn at random.
    """
    n, size = len(chosen), scene.size
    corners = _layout(n, scene, generator)  # [batch, digit, 2]
    order = corners[:, :, 1].argsort(dim=1, stable=True)
    corners = corners.gather(1, order[:, :, None].expand_as(corners))
    chosen = chosen.gather(1, order)
    corners = corners + _drawn((n, scene.n_digits, 2), -scene.max_shift, scene.max_shift, generator)
    canvas = torch.zeros(n, size * size, dtype=torch.uint8)
    places = [pixels_of(corners, SIDE, size)]
    values = [digits.images[chosen].flatten(1)]
    if scene.n_clutter:
        shape, side = (n, scene.n_clutter, 2), scene.clutter_size
        corner = _drawn(shape, 0, size - side, generator)
        places.append(pixels_of(corner, side, size))
        values.append(_pieces(digits.images, scene, n, generator))
    # The maximum of all values at a pixel: scatter alone would keep an arbitrary one.
    canvas.scatter_reduce_(1, torch.cat(places, 1), torch.cat(values, 1), "amax")
    labels = digits.labels[chosen]
    labels = labels.sum(1) if scene.asks == "sum" else labels.squeeze(1)
    return ImageBatch(as_images(canvas.view(n, size, size)), labels, windows_of(corners, size))


class Scenes(Sequence[ImageBatch]):
    """The batches of one epoch; every digit is the first one of a scene once.

    A batch depends only on seed, epoch and its number, and is generated on demand.

    Args:
        in_order: The digits in stored order, for validation and test.
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
        # Steps from 2^20 on are those of batches; epochs use the ones below.
        self.first = 2**20 + epoch * len(self.parts)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
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
    """The upper left corner, (row, column), of each digit: uniform over layouts without overlap.

    The probability that a scene has none among its `LAYOUTS` is below 1e-8.
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
    """The index on the flat canvas of each pixel of square pieces."""
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
