"""A window that can be moved, scaled, turned and sheared over an image, with a gradient.

Jaderberg et al., 2015, "Spatial Transformer Networks" (https://arxiv.org/abs/1506.02025), section
3. A matrix of six numbers maps each location of the window to a location of the image; between
pixels the sampling is bilinear.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError

IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def sampling_grid(
    theta: Float[Tensor, "batch 2 3"], *, height: int, width: int
) -> Float[Tensor, "batch height width 2"]:
    """The image location of each window location: ``(x, y) = theta (x', y', 1)``, equation 1.

    Coordinates are those of `saccade.zoo.sensors`, so the identity shows the whole image and a
    centre of (0.5, 0) is three quarters to the right.

    >>> theta = torch.tensor([[[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]])
    >>> sampling_grid(theta, height=1, width=2)[0, 0]
    tensor([[-0.2500,  0.0000],
            [ 0.2500,  0.0000]])
    """
    return functional.affine_grid(theta, [len(theta), 1, height, width], align_corners=False)


def warp(
    images: Float[Tensor, "batch channel in_height in_width"],
    theta: Float[Tensor, "batch 2 3"],
    *,
    height: int,
    width: int,
) -> Float[Tensor, "batch channel height width"]:
    """The content of a window by bilinear sampling, equation 5.

    Outside the image everything is zero.
    """
    grid = sampling_grid(theta, height=height, width=width)
    return functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )


def window_theta(windows: Float[Tensor, "batch 4"]) -> Float[Tensor, "batch 2 3"]:
    """The matrices of upright windows ``(x, y, half_width, half_height)``.

    >>> window_theta(torch.tensor([[0.5, 0.0, 0.25, 0.75]]))
    tensor([[[0.2500, 0.0000, 0.5000],
             [0.0000, 0.7500, 0.0000]]])
    """
    return torch.cat([torch.diag_embed(windows[:, 2:]), windows[:, :2, None]], dim=2)


class LocalisationNet(nn.Module):
    """Predict six numbers from an image: convolutions with pooling, and one hidden layer.

    Jaderberg et al. leave its form free; theirs for digits (appendix A.4) has two convolutions and
    one hidden layer of 50. It is initialised to output ``start`` for any image, as they advise.

    Args:
        channels: Channels of the image and of each convolution; a pooling of 2 follows each.
        height: Height of the image, as ``width``; pooling drops an odd last row.
        start: The initial matrix, row by row; the identity shows the whole image.
    """

    def __init__(
        self,
        channels: Sequence[int],
        *,
        height: int,
        width: int,
        d_hidden: int,
        kernel: int = 5,
        start: Sequence[float] = IDENTITY,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for d_in, d_out in pairwise(channels):
            layers += [nn.Conv2d(d_in, d_out, kernel, padding=kernel // 2)]
            layers += [nn.MaxPool2d(2), nn.ReLU()]
            height, width = height // 2, width // 2
        if min(height, width) < 1:
            raise UsageError(
                f"{len(channels) - 1} poolings reduce the image to nothing",
                hint="use fewer convolutions, or larger images",
            )
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.hidden = nn.Linear(channels[-1] * height * width, d_hidden)
        self.theta = nn.Linear(d_hidden, 6)
        nn.init.zeros_(self.theta.weight)
        with torch.no_grad():
            self.theta.bias.copy_(torch.tensor(start))

    def forward(
        self, images: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch 2 3"]:
        """The matrix for each image."""
        hidden = self.hidden(self.features(images)).relu()
        return self.theta(hidden).unflatten(1, (2, 3))
