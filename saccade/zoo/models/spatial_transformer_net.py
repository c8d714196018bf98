"""A spatial transformer network: find what matters, straighten it out, then name it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.sensors.retina import check_images
from saccade.zoo.sensors.spatial_transformer import LocalisationNet, warp

SHRUNK = 2  # the first localisation sees the image at a half: where a digit is needs no detail


class Warped(NamedTuple):
    """What a pass over a batch of images leaves."""

    logits: Float[Tensor, "batch d_class"]
    theta: Float[Tensor, "batch 2 3"]
    """The first transformer's matrix: which part of the image it shows."""
    window: Float[Tensor, "batch side side"]
    """What it shows."""


class SpatialTransformerNet(nn.Module):
    """A convolutional network that looks through a window which a small network puts in place.

    Jaderberg et al., 2015 (https://arxiv.org/abs/1506.02025): "ST-CNN Single" has one transformer
    before the first convolution, "ST-CNN Multi" (section 4.2) one more before each of the others,
    which then warps a map of features. All of it is taught by the class alone.

    Where we differ: the first window has fewer pixels than the image, as in the paper's cluttered
    task, and the localisation sees the image at a half, for speed.

    Args:
        size: Height and width of the images in pixels.
        side: Pixels of the window's side.
        channels: Of the classifier's convolutions; each is followed by a pooling of 2.
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
