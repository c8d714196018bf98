"""A spatial transformer network: localise an object, rectify it, classify it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.sensors.retina import check_images
from saccade.zoo.sensors.spatial_transformer import LocalisationNet, warp

SHRUNK = 2  # the first localisation sees the image at half resolution, enough to find a digit


class Warped(NamedTuple):
    """Result of a pass over a batch of images."""

    logits: Float[Tensor, "batch d_class"]
    theta: Float[Tensor, "batch 2 3"]
    """The first transformer's matrix: its window of the image."""
    window: Float[Tensor, "batch side side"]
    """The content of the window."""


class SpatialTransformerNet(nn.Module):
    """A convolutional network on a window that a small network localises.

    Jaderberg et al., 2015 (https://arxiv.org/abs/1506.02025): "ST-CNN Single" has one transformer
    before the first convolution, "ST-CNN Multi" (section 4.2) one more before each of the others,
    which then warps a map of features. Everything is trained by the class label alone.

    Where we differ: the first window has fewer pixels than the image, as in the paper's cluttered
    task, and the localisation sees the image at half resolution, for speed.

    Args:
        size: Height and width of the images in pixels.
        side: Side of the window in pixels.
        channels: Channels of the classifier's convolutions; a pooling of 2 follows each.
        is_multi: A transformer before every convolution.

    >>> import torch
    >>> model = SpatialTransformerNet(size=(20, 24), n_classes=5, side=12, channels=(3, 5))
    >>> model(torch.zeros(2, 20, 24)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        size: tuple[int, int],
        n_classes: int,
        side: int = 28,
        channels: Sequence[int] = (32, 64),
        d_hidden: int = 128,
        is_multi: bool = False,
    ) -> None:
        super().__init__()
        self.size, self.side = size, side
        height, width = (length // SHRUNK for length in size)
        self.localisation = LocalisationNet(
            (1, 12, 24, 32), height=height, width=width, d_hidden=64, kernel=3
        )
        self.convolutions, self.inner = nn.ModuleList(), nn.ModuleList()
        for number, (d_in, d_out) in enumerate(pairwise((1, *channels))):
            if is_multi and number > 0:
                inner = LocalisationNet((d_in, 16), height=side, width=side, d_hidden=32, kernel=3)
                self.inner.append(inner)
            self.convolutions.append(nn.Conv2d(d_in, d_out, 3))
            side = (side - 2) // 2  # no padding, then a pooling
        self.hidden = nn.Linear(channels[-1] * side**2, d_hidden)
        self.answer = nn.Linear(d_hidden, n_classes)

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch d_class"]:
        """The answer."""
        return self.look(images).logits

    def look(self, images: Float[Tensor, "batch height width"]) -> Warped:
        """The answer, and the window it came from."""
        check_images(images, size=self.size)
        pictures = images[:, None]
        theta = self.localisation(functional.avg_pool2d(pictures, SHRUNK))
        window = warp(pictures, theta, height=self.side, width=self.side)
        features = window
        for number, convolution in enumerate(self.convolutions):
            if number > 0 and self.inner:
                inner = self.inner[number - 1](features)
                height, width = features.shape[2:]
                features = warp(features, inner, height=height, width=width)
            features = functional.max_pool2d(convolution(features), 2).relu()
        hidden = self.hidden(features.flatten(1)).relu()
        return Warped(self.answer(hidden), theta, window[:, 0])
