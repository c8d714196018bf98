"""A square grid of Gaussian filters over an image, to read from it and to write to it.

Gregor et al., 2015, "DRAW" (https://arxiv.org/abs/1502.04623), section 3.2. The grid has a centre,
a stride and a width, all differentiable: a wide grid of wide filters sees the whole image at low
resolution, a narrow one sees a part of it sharply.
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

# Bounds of all logarithms. A variance of exp(-8) is a width of 1/50 pixel, one of exp(8) of 50
# pixels, and a stride of exp(8) is far outside: nothing is lost, and nothing overflows.
LEAST_LOG, MOST_LOG = -8.0, 8.0
N_PARAMETERS = 5


class GaussianGrid(NamedTuple):
    """Geometry of the filters."""

    centre: Float[Tensor, "batch 2"]
    """(x, y) in [-1, 1], as for all sensors."""
    stride: Float[Tensor, " batch"]
    """Distance from one filter to the next, in pixels."""
    variance: Float[Tensor, " batch"]
    """Variance of each filter, in pixels squared."""
    intensity: Float[Tensor, " batch"]
    """Reads are multiplied by it, writes are divided by it."""


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
    """A grid from five unconstrained numbers, equations 21 to 24.

    They are the centre, log variance, log stride and log intensity. All zero means centred, over
    the whole image, with filters of one pixel.

    Where we differ: the centre is in the coordinates of `saccade.zoo.sensors`, where -1 and 1 are
    the outer edges of the image; the paper's lie half a pixel further out. The logarithms are
    clamped, so that no number overflows.

    >>> grid = grid_from_parameters(torch.zeros(1, 5), height=28, width=28, size=4)
    >>> grid.stride  # the outer filters lie on the outer pixels
    tensor([9.])
    """
    widest = _widest_stride(height=height, width=width, size=size)
    variance, stride, intensity = parameters[:, 2:].clamp(LEAST_LOG, MOST_LOG).exp().unbind(1)
    return GaussianGrid(parameters[:, :2], widest * stride, variance, intensity)


def _widest_stride(*, height: int, width: int, size: int) -> float:
    """The stride at which filters span the whole image; refuses a grid that does not fit."""
    if size < 2 or size > max(height, width):
        raise UsageError(
            f"a grid has from 2 to {max(height, width)} filters a side on an image of "
            f"{width} x {height}, got {size}",
            hint="give a smaller glimpse",
        )
    return (max(height, width) - 1) / (size - 1)


def gaussian_filters(grid: GaussianGrid, *, height: int, width: int, size: int) -> GaussianBank:
    """The filters of a grid, equations 19, 20, 25 and 26.

    A filter is divided by its sum over the pixels of the image. As a softmax over pixels it is the
    same number, but never 0/0: a filter outside the image falls on its edge.

    >>> grid = grid_from_parameters(torch.zeros(1, 5), height=7, width=5, size=3)
    >>> gaussian_filters(grid, height=7, width=5, size=3).rows.sum(-1)
    tensor([[1., 1., 1.]])
    """
    x, y = grid.centre.unbind(1)
    middle = torch.stack([to_pixels(x, width), to_pixels(y, height)], dim=1)  # [batch, 2]
    offsets = torch.arange(size, device=middle.device, dtype=middle.dtype) - (size - 1) / 2
    means = middle[:, :, None] + grid.stride[:, None, None] * offsets  # [batch, 2, size]
    # Both axes at once, padded to the longer one; the shorter one is masked.
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
    """``-(pixel - mean)^2 / (2 variance)``, without the term that all pixels share.

    The rest, ``(pixel mean - pixel^2 / 2) / variance``, is one matrix product, and so is its
    gradient. With pixels counted from the middle, rounding moves any filter by less than 1/1000
    pixel.
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

    Several images at the same location, such as an image and its residual error, are channels.
    """
    # Two products for all channels: a broadcast one would first copy the filters for each of them.
    n_channels = images.shape[1]
    flat = bank.rows @ images.transpose(1, 2).flatten(2)  # [batch, size, channel * width]
    by_row = flat.unflatten(2, (n_channels, -1)).flatten(1, 2)  # [batch, size * channel, width]
    seen = (by_row @ bank.columns.mT) * bank.intensity[:, None, None]
    return seen.unflatten(1, (-1, n_channels)).transpose(1, 2)


def gaussian_write(
    patch: Float[Tensor, "batch size size"], bank: GaussianBank
) -> Float[Tensor, "batch height width"]:
    """A patch written to an empty image: ``1/intensity F_Y^T w F_X``, equation 29."""
    return bank.rows.mT @ patch @ bank.columns / bank.intensity[:, None, None]


class GridPlace(nn.Module):
    """Predict where to look from a hidden state: five numbers by a linear map, equation 21.

    It is initialised to the whole image, with filters half as wide as their distance: every pixel
    is seen, so every pixel has a gradient. (The paper asks for the first and does not mention the
    second.)

    Args:
        first_view: Initial size of the grid, as a share of the image's side. A smaller one suits
            small objects.
    """

    def __init__(
        self, d_hidden: int, *, height: int, width: int, size: int, first_view: float = 1.0
    ) -> None:
        super().__init__()
        if not 0 < first_view <= 1:
            raise UsageError(
                f"first_view: expected a share of the image's side, above 0 and at most 1, "
                f"got {first_view:g}",
                hint="1 starts with the whole image",
            )
        self.height, self.width, self.size = height, width, size
        self.parameters_of = nn.Linear(d_hidden, N_PARAMETERS)
        nn.init.zeros_(self.parameters_of.weight)
        nn.init.zeros_(self.parameters_of.bias)
        stride = first_view * _widest_stride(height=height, width=width, size=size)
        self.parameters_of.bias.data[2] = 2 * math.log(stride / 2)
        self.parameters_of.bias.data[3] = math.log(first_view)

    def forward(self, hidden: Float[Tensor, "batch d_hidden"]) -> GaussianGrid:
        """The grid for a hidden state."""
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
