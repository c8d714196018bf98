"""Baselines for glimpse models: nets that see the whole image at once."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.zoo.sensors.retina import check_images


class FullyConnectedNet(nn.Module):
    """Two layers of ReLU units over all pixels.

    Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), the rows "FC, 2 layers" of tables 1 and 2.

    >>> FullyConnectedNet(size=(28, 28), n_classes=10)(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, *, size: tuple[int, int], n_classes: int, d_hidden: int = 256) -> None:
        super().__init__()
        self.size = size
        self.layers = nn.Sequential(
            nn.Linear(size[0] * size[1], d_hidden),
            nn.ReLU(),
            nn.Linear(d_hidden, d_hidden),
            nn.ReLU(),
            nn.Linear(d_hidden, n_classes),
        )

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch d_class"]:
        """The answer."""
        check_images(images, size=self.size)
        return self.layers(images.flatten(1))


class ConvolutionalNet(nn.Module):
    """Eight filters of 10 x 10 pixels with stride 5, and a layer of ReLU units.

    Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), section 4.1, the rows "Convolutional, 2
    layers" of tables 1 and 2.

    >>> ConvolutionalNet(size=(28, 28), n_classes=10)(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        size: tuple[int, int],
        n_classes: int,
        d_hidden: int = 256,
        n_filters: int = 8,
        filter_size: int = 10,
        stride: int = 5,
    ) -> None:
        super().__init__()
        if filter_size > min(size):
            raise UsageError(
                f"a filter of {filter_size} pixels is larger than the image of "
                f"{size[0]} x {size[1]}",
                hint="give a smaller filter, or larger images",
            )
        self.size = size
        self.filters = nn.Conv2d(1, n_filters, filter_size, stride=stride)
        rows, columns = ((side - filter_size) // stride + 1 for side in size)
        self.hidden = nn.Linear(n_filters * rows * columns, d_hidden)
        self.answer = nn.Linear(d_hidden, n_classes)

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch d_class"]:
        """The answer."""
        check_images(images, size=self.size)
        found = self.filters(images[:, None]).relu()  # [batch, filter, row, column]
        return self.answer(torch.relu(self.hidden(found.flatten(1))))
