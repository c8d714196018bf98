"""A small network of convolutions that turns images into maps of features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.sensors.coordinates import pixel_centres


class ConvolutionalEncoder(nn.Module):
    """Annotation vectors of an image: one for each cell of a grid over it.

    Stands where Xu et al., 2015 (https://arxiv.org/abs/1502.03044), section 3.1.1, take layer
    ``conv5_3`` of a VGG net that has learnt ImageNet. This one is small enough to learn with the
    task. Each convolution is followed by batch normalisation (Ioffe and Szegedy, 2015,
    https://arxiv.org/abs/1502.03167) and rectified; the first is 5 x 5, the others are 3 x 3. With
    the strides below a cell is 8 x 8 pixels, and its vector is made of the 49 x 49 around it.

    The last convolution also sees the coordinates of each cell, as two more channels (Liu et al.,
    2018, https://arxiv.org/abs/1807.03247): a decoder that is to name things from left to right
    must be told where they are.

    >>> ConvolutionalEncoder(n_colours=3)(torch.zeros(2, 3, 88, 64)).shape
    torch.Size([2, 96, 11, 8])
    """

    def __init__(
        self,
        *,
        n_colours: int,
        channels: Sequence[int] = (24, 32, 64, 64, 96),
        strides: Sequence[int] = (2, 2, 2, 1, 1),
    ) -> None:
        super().__init__()
        if len(channels) != len(strides) or len(channels) < 2:
            raise UsageError(
                f"expected two or more convolutions with a stride each, got {len(channels)} "
                f"and {len(strides)} strides",
                hint="channels=(24, 48) goes with strides=(2, 2)",
            )
        self.n_colours, self.d_annotation = n_colours, channels[-1]
        sizes = list(zip(pairwise((n_colours, *channels)), strides, strict=True))
        self.layers = nn.Sequential(
            *(
                _convolution(d_in, d_out, stride=stride, side=3 if number else 5)
                for number, ((d_in, d_out), stride) in enumerate(sizes[:-1])
            )
        )
        (d_in, d_out), stride = sizes[-1]
        self.last = _convolution(d_in + 2, d_out, stride=stride, side=3)
        # Colours last in memory: on a CPU a step then takes two thirds of the time.
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(
        self, images: Float[Tensor, "batch colour height width"]
    ) -> Float[Tensor, "batch d_annotation row column"]:
        """The maps."""
        if images.shape[1] != self.n_colours:
            raise UsageError(
                f"expected images of {self.n_colours} colours, got {images.shape[1]}",
                hint="1 is grey, 3 is red, green and blue",
            )
        maps = self.layers(images.contiguous(memory_format=torch.channels_last))
        return self.last(torch.cat([maps, _places(maps)], dim=1))


def _convolution(d_in: int, d_out: int, *, stride: int, side: int) -> nn.Sequential:
    filters = nn.Conv2d(d_in, d_out, side, stride=stride, padding=side // 2, bias=False)
    return nn.Sequential(filters, nn.BatchNorm2d(d_out), nn.ReLU(inplace=True))


def _places(
    maps: Float[Tensor, "batch d row column"],
) -> Float[Tensor, "batch 2 row column"]:
    """The coordinates of each cell, x first."""
    n, _, rows, columns = maps.shape
    x = pixel_centres(columns).expand(rows, columns)
    y = pixel_centres(rows)[:, None].expand(rows, columns)
    return torch.stack([x, y]).to(maps).expand(n, 2, rows, columns)
