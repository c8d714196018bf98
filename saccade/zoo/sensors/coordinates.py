"""Places in an image, as pixels and in the one convention of `saccade.zoo.sensors`."""

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError


def pixel_centres(n: int) -> Float[Tensor, " n"]:
    """Where the centres of n pixels in a row lie between the edges -1 and 1.

    >>> pixel_centres(4)
    tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """
    return (2 * torch.arange(n) + 1) / n - 1


def to_pixels(place: Float[Tensor, "*any"], n: int) -> Float[Tensor, "*any"]:
    """The pixel at a place, of n in a row; 0 is the centre of the first one.

    >>> to_pixels(torch.tensor([-1.0, 0.0, 1.0]), 4)
    tensor([-0.5000,  1.5000,  3.5000])
    """
    return ((place + 1) * n - 1) / 2


def to_places(pixel: Float[Tensor, "*any"], n: int) -> Float[Tensor, "*any"]:
    """The place of a pixel; the way back from `to_pixels`.

    >>> to_places(torch.tensor([0.0, 1.5, 3.0]), 4)
    tensor([-0.7500,  0.0000,  0.7500])
    """
    return (2 * pixel + 1) / n - 1


def unrounded(like: Tensor) -> torch.autocast:
    """Within it, products keep all their bits, even where a training rounds them (`precision`).

    bfloat16 has 8 bits: at the edge of 100 pixels a place could be told to a fifth of a pixel only.
    """
    return torch.autocast(like.device.type, enabled=False)


def check_images(images: Tensor, *, size: tuple[int, int] | None = None) -> None:
    """Refuse what is no batch of grey images, or is of another size (height, width)."""
    shape = tuple(images.shape)
    if len(shape) == 4:
        raise UsageError(
            f"expected grey images [batch, height, width], got {shape}, which has colours",
            hint="average the colours: images.mean(1)",
        )
    if len(shape) != 3:
        raise UsageError(
            f"expected grey images [batch, height, width], got {shape}",
            hint="a single image needs an axis for the batch: image[None]",
        )
    if size is not None and shape[1:] != size:
        height, width = size
        raise UsageError(
            f"expected images of {height} x {width} pixels, got {shape[1]} x {shape[2]}",
            hint="the model was made for that size: crop or pad the images",
        )
