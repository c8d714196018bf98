"""MNIST as a sequence: a digit read row by row, or pixel by pixel."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from saccade.tasks.mnist import Digits
from saccade.tasks.step_seed import generator_of


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
