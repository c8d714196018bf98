"""A square grid of Gaussian filters laid over an image, to read from it and to write onto it.

Gregor et al., 2015, "DRAW" (https://arxiv.org/abs/1502.04623), section 3.2. The grid has a centre,
a stride and a width, all of which have a gradient: a wide grid of wide filters sees the whole image
roughly, a narrow one sees a part of it sharply.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.zoo.fast.forms import without_autocast
from saccade.zoo.sensors.retina import to_pixels

# No logarithm goes beyond these. A variance of exp(-8) is a fiftieth of a pixel wide, one of exp(8)
# fifty pixels, a stride of exp(8) far outside: nothing is lost, and nothing overflows.
LEAST_LOG, MOST_LOG = -8.0, 8.0
N_PARAMETERS = 5


class GaussianGrid(NamedTuple):
    """Where the filters are."""

    centre: Float[Tensor, "batch 2"]
    """(x, y) in [-1, 1], as for all sensors."""
    stride: Float[Tensor, " batch"]
    """From one filter to the next, in pixels."""
    variance: Float[Tensor, " batch"]
    """Of each filter, in pixels squared."""
    intensity: Float[Tensor, " batch"]
    """What is read is multiplied by this, what is written is divided by it."""


class GaussianBank(NamedTuple):
    """The filters of a grid: each sums to 1 over the pixels."""

    rows: Float[Tensor, "batch size height"]
    """The paper's F_Y."""
    columns: Float[Tensor, "batch size width"]
    """The paper's F_X."""
    intensity: Float[Tensor, " batch"]


def grid_from_parameters(
    parameters: Float[Tensor, "batch 5"], *, height: int, width: int, size: int
) -> GaussianGrid:
    """A grid from five free numbers, equations 21 to 24.

    They are the centre, log variance, log stride and log intensity. All zero means: in the middle,
    over the whole image, with filters of one pixel.

    Where we differ: the centre is in the coordinates of `saccade.zoo.sensors`, where -1 and 1 are
    the outer edges of the image; the paper's lie half a pixel further out. The logarithms are kept
    within bounds, so that no number becomes infinite.

    >>> grid = grid_from_parameters(torch.zeros(1, 5), height=28, width=28, size=4)
    >>> grid.stride  # the outer filters lie on the outer pixels
    tensor([9.])
    """
    widest = _widest_stride(height=height, width=width, size=size)
    variance, stride, intensity = parameters[:, 2:].clamp(LEAST_LOG, MOST_LOG).exp().unbind(1)
    return GaussianGrid(parameters[:, :2], widest * stride, variance, intensity)


def _widest_stride(*, height: int, width: int, size: int) -> float:
    """From filter to filter where they span the whole image; refuses a grid that does not fit."""
    if size < 2 or size > max(height, width):
        raise UsageError(
            f"a grid has from 2 to {max(height, width)} filters a side on an image of "
            f"{width} x {height}, got {size}",
            hint="give a smaller glimpse",
        )
    return (max(height, width) - 1) / (size - 1)


def gaussian_filters(grid: GaussianGrid, *, height: int, width: int, size: int) -> GaussianBank:
    """The filters of a grid, equations 19, 20, 25 and 26.

    A filter is divided by its sum over the pixels of the image. Written as a softmax over pixels
    that is the same number, but never zero by zero: a filter that lies outside ends on the edge.

    >>> grid = grid_from_parameters(torch.zeros(1, 5), height=7, width=5, size=3)
    >>> gaussian_filters(grid, height=7, width=5, size=3).rows.sum(-1)
    tensor([[1., 1., 1.]])
    """
    x, y = grid.centre.unbind(1)
    middle = torch.stack([to_pixels(x, width), to_pixels(y, height)], dim=1)  # [batch, 2]
    offsets = torch.arange(size, device=middle.device, dtype=middle.dtype) - (size - 1) / 2
    means = middle[:, :, None] + grid.stride[:, None, None] * offsets  # [batch, 2, size]
    # Both axes at once, as long as the longer one; the shorter one ends earlier.
    pixels = torch.arange(max(height, width), device=middle.device, dtype=middle.dtype)
    scores = _closeness(means, pixels, variance=grid.variance)
    if height != width:
        is_inside = pixels < middle.new_tensor([[width], [height]])  # [2, pixel]
        scores = scores.masked_fill(~is_inside[:, None], -torch.inf)
    columns, rows = scores.softmax(-1).unbind(1)
    return GaussianBank(rows[..., :height], columns[..., :width], grid.intensity)


def _closeness(
    means: Float[Tensor, "batch 2 size"],
    pixels: Float[Tensor, " pixel"],
    *,
    variance: Float[Tensor, " batch"],
) -> Float[Tensor, "batch 2 size pixel"]:
    """``-(pixel - mean)^2 / (2 variance)``, without the part that is the same for all pixels.

    What is left, ``(pixel mean - pixel^2 / 2) / variance``, is one matrix product, whose gradient
    is one, too. With pixels counted from the middle rounding moves a filter by less than a
    thousandth of a pixel, however narrow or far away it is.
    """
    origin = pixels.mean()
    from_middle = pixels - origin
    precision = 1 / variance[:, None, None].expand_as(means)
    factors = torch.stack([(means - origin) * precision, precision], dim=3)
    with without_autocast(means):
        return factors @ torch.stack([from_middle, -0.5 * from_middle.square()])


def gaussian_read(
    images: Float[Tensor, "batch channel height width"], bank: GaussianBank
) -> Float[Tensor, "batch channel size size"]:
    """What the filters see: ``intensity F_Y x F_X^T``, equation 27.

    Several images at the same place, such as a picture and what is wrong with it so far, are
    channels.
    """
    # Two products for all channels: a broadcast one would first copy the filters for each of them.
    n_channels = images.shape[1]
    flat = bank.rows @ images.transpose(1, 2).flatten(2)  # [batch, size, channel * width]
    beside = flat.unflatten(2, (n_channels, -1)).flatten(1, 2)  # [batch, size * channel, width]
    seen = (beside @ bank.columns.mT) * bank.intensity[:, None, None]
    return seen.unflatten(1, (-1, n_channels)).transpose(1, 2)


def gaussian_write(
    patch: Float[Tensor, "batch size size"], bank: GaussianBank
) -> Float[Tensor, "batch height width"]:
    """A patch laid onto an empty image: ``1/intensity F_Y^T w F_X``, equation 29."""
    return bank.rows.mT @ patch @ bank.columns / bank.intensity[:, None, None]


class GridPlace(nn.Module):
    """Where to look, chosen by the state of a network: five numbers by a linear map, equation 21.

    It begins with a look at the whole image, through filters half as wide as they lie apart: no
    pixel goes unseen, so every pixel can pull. (The paper asks for the first, and is silent on the
    second.)

    Args:
        first_view: The part of the image's side that it begins with. Where things are small, a
            smaller one shows what is worth a closer look.
    """

    def __init__(
        self, d_hidden: int, *, height: int, width: int, size: int, first_view: float = 1.0
    ) -> None:
        super().__init__()
        if not 0 < first_view <= 1:
            raise UsageError(
                f"first_view: expected a part of the image's side, above 0 and at most 1, "
                f"got {first_view:g}",
                hint="1 begins with the whole image",
            )
        self.height, self.width, self.size = height, width, size
        self.parameters_of = nn.Linear(d_hidden, N_PARAMETERS)
        nn.init.zeros_(self.parameters_of.weight)
        nn.init.zeros_(self.parameters_of.bias)
        stride = first_view * _widest_stride(height=height, width=width, size=size)
        self.parameters_of.bias.data[2] = 2 * math.log(stride / 2)
        self.parameters_of.bias.data[3] = math.log(first_view)

    def forward(self, hidden: Float[Tensor, "batch d_hidden"]) -> GaussianGrid:
        """The grid that a state asks for."""
        with without_autocast(hidden):
            parameters = self.parameters_of(hidden.to(self.parameters_of.weight))
        return grid_from_parameters(
            parameters, height=self.height, width=self.width, size=self.size
        )

    def bank(self, grid: GaussianGrid) -> GaussianBank:
        """The filters of such a grid."""
        return gaussian_filters(grid, height=self.height, width=self.width, size=self.size)


def grid_windows(
    grid: GaussianGrid, *, height: int, width: int, size: int
) -> Float[Tensor, "batch 4"]:
    """The windows ``(x, y, half_width, half_height)`` that the grid's filters span.

    >>> grid = grid_from_parameters(torch.zeros(1, 5), height=28, width=28, size=4)
    >>> grid_windows(grid, height=28, width=28, size=4)[0, 2:] * 28 / 2  # in pixels
    tensor([18., 18.])
    """
    half = grid.stride[:, None] * size / grid.stride.new_tensor([width, height])
    return torch.cat([grid.centre, half], dim=1)
