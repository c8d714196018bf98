"""Image encoders: a small convolutional network, and pretrained backbones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import MissingPackageError, ModelError, UsageError
from saccade.store.folder import load_tensors
from saccade.zoo.sensors.retina import pixel_centres

# A small convolutional network that turns images into feature maps.


class ConvolutionalEncoder(nn.Module):
    """Annotation vectors of an image: one for each cell of a grid over it.

    Takes the role of layer ``conv5_3`` of a VGG net trained on ImageNet in Xu et al., 2015
    (https://arxiv.org/abs/1502.03044), section 3.1.1. It is small enough to be trained with the
    task. Each convolution is followed by batch normalisation (Ioffe and Szegedy, 2015,
    https://arxiv.org/abs/1502.03167) and a ReLU; the first is 5 x 5, the others are 3 x 3. With
    the strides below a cell is 8 x 8 pixels, and its receptive field is 49 x 49.

    The last convolution also sees the coordinates of each cell, as two more channels (Liu et al.,
    2018, https://arxiv.org/abs/1807.03247): a decoder that names objects from left to right needs
    their locations.

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
        # Channels last in memory: on a CPU a step takes two thirds of the time.
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(
        self, images: Float[Tensor, "batch colour height width"]
    ) -> Float[Tensor, "batch d_annotation row column"]:
        """The feature maps."""
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


# Means and standard deviations of ImageNet's colours, by which nets trained on it normalise.
MEANS, SPREADS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRIAL = 64  # side in pixels of the image that probes a net's output size


class Backbone(nn.Module):
    """Feature maps of a pretrained, frozen net.

    What Xu et al., 2015 (https://arxiv.org/abs/1502.03044) do with VGG. Any net works that returns
    maps ``[batch, d, row, column]``, or a list of maps, of which the last is used: those of `timm`
    by their ``forward_features``, those of torchvision without their last layers, which pool and
    classify::

        Backbone(nn.Sequential(*list(resnet.children())[:-2]))

    >>> Backbone(nn.Conv2d(3, 7, 16, stride=16)).d_annotation
    7
    """

    means: Tensor
    spreads: Tensor

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body.eval().requires_grad_(False)
        self.register_buffer("means", torch.tensor(MEANS)[:, None, None])
        self.register_buffer("spreads", torch.tensor(SPREADS)[:, None, None])
        self.d_annotation = self(torch.zeros(1, 3, TRIAL, TRIAL)).shape[1]

    def train(self, mode: bool = True) -> Backbone:  # noqa: FBT001, FBT002  torch's signature
        """Stay in eval mode: batch statistics must not change."""
        del mode
        return self

    @torch.no_grad()
    def forward(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch d_annotation row column"]:
        """The maps of colour images with values from 0 to 1."""
        look: Any = getattr(self.body, "forward_features", self.body)
        maps = look((images - self.means) / self.spreads)
        maps = maps[-1] if isinstance(maps, list | tuple) else maps
        if maps.dim() != 4:
            raise ModelError(
                f"expected feature maps [batch, d, row, column], got {tuple(maps.shape)}",
                hint="take a convolutional net, without its last pooling",
            )
        return maps


def open_backbone(name: str, *, weights: str | Path) -> Backbone:
    """A net of the package `timm` by its name, with weights from a safetensors file.

    Nothing is downloaded: the user provides the file, such as ``model.safetensors`` of a timm
    model on the hub.
    """
    try:
        import timm  # pyright: ignore[reportMissingImports]  optional
    except ImportError as error:
        raise MissingPackageError(
            "a net by its name needs the package 'timm'", hint="pip install timm"
        ) from error
    try:
        body = timm.create_model(name, pretrained=False)
    except RuntimeError as error:  # timm's error for an unknown name
        raise ModelError(
            f"timm has no net named {name!r}", hint="`timm.list_models()` lists them"
        ) from error
    missing, _ = body.load_state_dict(load_tensors(weights), strict=False)
    if missing:
        raise ModelError(
            f"{weights} is not of {name}: it lacks {', '.join(missing[:3])}",
            hint="give the file that was published with this net",
        )
    return Backbone(body)
