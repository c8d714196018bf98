"""The retina: sharp at its centre, coarser around it; and the coordinates of all sensors.

Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), section 3.1, "glimpse sensor": square patches
around one centre, each twice as wide as the one before, all reduced to the same few pixels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from saccade.errors import UsageError


class SummedImages(NamedTuple):
    """Summed-area tables: at each corner of the pixel grid, the sum above and to the left."""

    sums: Float[Tensor, "batch height_and_1 width_and_1"]


def sum_images(images: Float[Tensor, "batch height width"]) -> SummedImages:
    """Prepare images once for any number of glimpses.

    >>> sum_images(torch.ones(1, 2, 2)).sums[0]
    tensor([[0., 0., 0.],
            [0., 1., 2.],
            [0., 2., 4.]])
    """
    # In place: padding has copied already, and memory traffic is most of the cost.
    return SummedImages(functional.pad(images, (1, 0, 1, 0)).cumsum_(1).cumsum_(2))


class Retina:
    """Sample images around given centres, at several scales at once.

    A pixel of a patch is the mean of the image over the square that it covers, for any centre, also
    between pixels; outside the image it is 0. It is computed from `SummedImages` (Crow, 1984,
    https://doi.org/10.1145/800031.808600): the four corners of a square give the sum inside it, so
    a coarse scale costs as much as a fine one, and one bilinear sampling serves all glimpses and
    scales of a batch. Between corners the sums of square pixels are bilinear exactly.

    Where we differ: the paper does not say how a patch is downsampled; public code crops at integer
    pixels and averages, and at integer pixels this gives the same. It is differentiable in the
    centre, which the paper does not use.

    Args:
        size: Side of a patch in pixels, at every scale; the first scale has the image's own pixels.
        n_scales: Number of patches, each ``growth`` times as wide as the one before.

    >>> retina = Retina(size=2, n_scales=2)
    >>> image = torch.arange(16.0).view(1, 4, 4)
    >>> retina.look(image, torch.zeros(1, 1, 2))[0, 0]
    tensor([[[ 5.0000,  6.0000],
             [ 9.0000, 10.0000]],
            [[ 2.5000,  4.5000],
             [10.5000, 12.5000]]])
    """

    def __init__(self, *, size: int, n_scales: int = 1, growth: float = 2.0) -> None:
        if size < 1 or n_scales < 1 or growth <= 1:
            raise UsageError(
                "a retina needs size and n_scales of 1 or more and growth above 1, got "
                f"{size}, {n_scales} and {growth}",
                hint="the paper uses 12 pixels at 3 scales that double",
            )
        self.size, self.n_scales, self.growth = size, n_scales, growth
        along = torch.linspace(-0.5, 0.5, size + 1) * size  # edges of a patch's pixels, in pixels
        edges = along * growth ** torch.arange(n_scales)[:, None]  # [scale, edge]
        ways = (n_scales, size + 1, size + 1)
        self.corners = torch.stack(
            [edges[:, None].expand(ways), edges[:, :, None].expand(ways)], dim=-1
        )  # [scale, row, column, (x, y)]
        shrinking = 1 / growth ** (2 * torch.arange(n_scales))
        self.shares = shrinking.repeat_interleave(size * size).view(n_scales, size, size)
        self._made: dict[tuple[Any, ...], Tensor] = {}

    @property
    def d_patch(self) -> int:
        """Size of a flattened glimpse."""
        return self.n_scales * self.size**2

    def check(self, height: int, width: int) -> None:
        """Refuse a patch that is larger than the image."""
        if self.size > min(height, width):
            raise UsageError(
                f"a glimpse of {self.size} x {self.size} pixels is larger than the image of "
                f"{height} x {width}",
                hint="give a smaller patch, or larger images",
            )

    def look(
        self, images: Float[Tensor, "batch height width"], centres: Float[Tensor, "batch glimpse 2"]
    ) -> Float[Tensor, "batch glimpse scale row column"]:
        """Patches of images, the finest scale first."""
        check_images(images)
        return self.look_again(sum_images(images), centres)

    def look_again(
        self, images: SummedImages, centres: Float[Tensor, "batch glimpse 2"]
    ) -> Float[Tensor, "batch glimpse scale row column"]:
        """The same, for images prepared by `sum_images`."""
        sums = images.sums
        n, height, width = sums.shape[0], sums.shape[1] - 1, sums.shape[2] - 1
        self.check(height, width)
        n_glimpses, edges = centres.shape[1], self.size + 1
        corners = centres[:, :, None, None, None] + self._offsets(sums)
        # The corners of the pixel grid lie on the edges of the image: align_corners=True. Beyond
        # them the sums do not grow, hence the padding mode "border".
        found = functional.grid_sample(
            sums[:, None],
            corners.view(n, -1, edges, 2),
            mode="bilinear",
            padding_mode="border",
            align_corners=True,
        ).view(n, n_glimpses, self.n_scales, edges, edges)
        columns = found[..., 1:] - found[..., :-1]
        inside = columns[..., 1:, :] - columns[..., :-1, :]
        return inside if self.n_scales == 1 else inside * self.shares.to(sums)

    def _offsets(self, sums: Tensor) -> Float[Tensor, "scale edge edge 2"]:
        """The corners of a glimpse's pixels around its centre; cached by image size."""
        _, height, width = sums.shape
        key = (height, width, sums.dtype, sums.device)
        if key not in self._made:
            pixel = torch.tensor([2 / (width - 1), 2 / (height - 1)])
            self._made[key] = (self.corners * pixel).to(sums)
        return self._made[key]

    def half_sizes(self, *, height: int, width: int) -> Float[Tensor, "scale 2"]:
        """Half the sides of the patches, as (x, y)."""
        reach = self.size * self.growth ** torch.arange(self.n_scales)
        return reach[:, None] / torch.tensor([float(width), float(height)])


# Pixels and locations, in the one convention of `saccade.zoo.sensors`; every sensor uses these.


def pixel_centres(n: int) -> Float[Tensor, " n"]:
    """The centres of n pixels in a row, between the edges -1 and 1.

    >>> pixel_centres(4)
    tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """
    return (2 * torch.arange(n) + 1) / n - 1


def to_pixels(location: Float[Tensor, "*any"], n: int) -> Float[Tensor, "*any"]:
    """The pixel at a location, of n in a row; 0 is the centre of the first one.

    >>> to_pixels(torch.tensor([-1.0, 0.0, 1.0]), 4)
    tensor([-0.5000,  1.5000,  3.5000])
    """
    return ((location + 1) * n - 1) / 2


def to_locations(pixel: Float[Tensor, "*any"], n: int) -> Float[Tensor, "*any"]:
    """The location of a pixel; the inverse of `to_pixels`.

    >>> to_locations(torch.tensor([0.0, 1.5, 3.0]), 4)
    tensor([-0.7500,  0.0000,  0.7500])
    """
    return (2 * pixel + 1) / n - 1


def check_images(images: Tensor, *, size: tuple[int, int] | None = None) -> None:
    """Refuse what is not a batch of grey images, or has another size than (height, width)."""
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
