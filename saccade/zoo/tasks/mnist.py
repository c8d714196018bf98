"""MNIST: 70,000 handwritten digits of 28 x 28 pixels."""

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from saccade.errors import TaskError
from saccade.zoo.tasks.curricula import generator_of
from saccade.zoo.tasks.datasets import find_data

# Reads IDX files, the form in which MNIST and its kin are published.

UNSIGNED_BYTE = 0x08
GZIP = b"\x1f\x8b"


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """The array in an IDX file of unsigned bytes, packed with gzip or not.

    The form (from the MNIST page): two zero bytes, one for the type, one for the number of axes;
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


# Images and what they show: what every visual system is trained on.


class ImageBatch(NamedTuple):
    """Grey images, what they show, and where.

    Places are in the convention of `saccade.zoo.sensors`.
    """

    images: Float[Tensor, "batch height width"]
    """0 is paper, 1 is ink."""
    labels: Int[Tensor, "batch ..."]
    """The digit; with several in an image one each, from left to right; or their sum."""
    windows: Float[Tensor, "batch n_digits 4"]
    """``x, y, half_width, half_height`` of the square that each digit came in, left to right."""


def as_images(images: UInt8[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Bytes as numbers from 0 to 1."""
    return images / 255


N_VALID = 5000
"""The last images of the published training part; the test part stays untouched."""


class Digits(NamedTuple):
    """Images and what they show."""

    images: UInt8[Tensor, "image height width"]
    labels: Int[Tensor, " image"]


def read_mnist(part: Literal["train", "valid", "test"], data: str | Path | None = None) -> Digits:
    """One part: 55,000 to learn from, 5,000 to choose by, 10,000 to report on."""
    folder = find_data("mnist", data)
    prefix = "t10k" if part == "test" else "train"
    images = read_idx(_file(folder, f"{prefix}-images-idx3-ubyte"))
    labels = read_idx(_file(folder, f"{prefix}-labels-idx1-ubyte")).long()
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise TaskError(
            f"the {prefix} part in {folder} does not fit together: images of shape "
            f"{tuple(images.shape)}, labels of shape {tuple(labels.shape)}",
            hint="fetch it again",
        )
    cut = {"train": slice(None, -N_VALID), "valid": slice(-N_VALID, None), "test": slice(None)}
    return Digits(images[cut[part]], labels[cut[part]])


def _file(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.gz"
    return packed if packed.is_file() else folder / name


# MNIST in ink or no ink: each pixel is drawn with its grey value as probability.
#
# Salakhutdinov and Murray, 2008 (https://doi.org/10.1145/1390156.1390266): generative models are
# compared by the likelihood of such digits. Their fixed drawing is a file of its own that is not
# part of MNIST. Here the digits to learn from are drawn anew every time, and those to be judged by
# once, from a fixed seed: the same distribution, so the metrics can be compared, but not the same
# pixels.


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
    """The batches of one epoch: all digits once, drawn anew.

    A batch depends on seed, epoch and its number alone, and is made when it is asked for.
    """

    def __init__(self, digits: Digits, *, batch: int, seed: int, epoch: int) -> None:
        self.digits, self.seed = digits, seed
        order = torch.randperm(len(digits.labels), generator=generator_of(seed, epoch))
        self.parts = order.split(batch)
        # After all epochs: numbers from 2^20 on are those of batches.
        self.first = 2**20 + epoch * len(self.parts)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.parts)

    def __getitem__(self, number: int) -> Float[Tensor, "batch height width"]:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        images = self.digits.images[self.parts[number]]
        return binarise(images, generator_of(self.seed, self.first + number))


# MNIST as a sequence: a digit read row by row, or pixel by pixel.


class RowBatch(NamedTuple):
    """Digits as sequences, and what they show."""

    inputs: Float[Tensor, "batch pos d_input"]
    labels: Int[Tensor, " batch"]


def as_rows(images: UInt8[Tensor, "batch height width"]) -> Float[Tensor, "batch height width"]:
    """A step for each row, ink as 1 and paper as 0: 28 steps of 28 numbers."""
    return images.float() / 255


def as_pixels(images: UInt8[Tensor, "batch height width"]) -> Float[Tensor, "batch pos 1"]:
    """A step for each pixel, in reading order: 784 steps of one number (Le et al., 2015)."""
    return as_rows(images).flatten(1)[:, :, None]


def row_batches(digits: Digits, *, batch: int, seed: int, epoch: int) -> Iterator[RowBatch]:
    """All digits once, in the order of one epoch; the last batch may be smaller."""
    order = torch.randperm(len(digits.labels), generator=generator_of(seed, epoch))
    for some in order.split(batch):
        yield RowBatch(as_rows(digits.images[some]), digits.labels[some])
