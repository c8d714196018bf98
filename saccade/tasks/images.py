"""Images and what they show: what every visual system is trained on."""

from typing import NamedTuple

from jaxtyping import Float, Int, UInt8
from torch import Tensor


class ImageBatch(NamedTuple):
    """Grey images, what they show, and where.

    Places are in the convention of `saccade.sensors`.
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
