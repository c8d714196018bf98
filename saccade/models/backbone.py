"""The door for large image nets that somebody else has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import MissingPackageError, ModelError
from saccade.store.tensors import load_tensors

# Means and spreads of ImageNet's colours, as all nets trained on it expect them subtracted.
MEANS, SPREADS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRIAL = 64  # pixels of the image by which a net is tried


class Backbone(nn.Module):
    """Maps of features from a trained net, which is not trained any further.

    What Xu et al., 2015 (https://arxiv.org/abs/1502.03044) do with VGG. Any net will do that gives
    maps ``[batch, d, row, column]``, or a list of them of which the last is taken: those of `timm`
    by their ``forward_features``, those of torchvision once their last layers, which pool and
    classify, are left out::

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
        """Stay as it is: its normalisation must not learn from what it is shown here."""
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
                f"expected maps of features [batch, d, row, column], got {tuple(maps.shape)}",
                hint="take a convolutional net, without its last pooling",
            )
        return maps


def open_backbone(name: str, *, weights: str | Path) -> Backbone:
    """A net of the package `timm` by its name, with weights out of a safetensors file.

    Nothing is fetched: the file is one that the user has, such as ``model.safetensors`` of a timm
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
    except RuntimeError as error:  # what timm says of a name that it does not know
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
