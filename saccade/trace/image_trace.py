"""A trace over an image: at each step which windows of it were looked at, and what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ImageTrace:
    """Where a system looked, or wrote, in an image, and the pictures it had at each step.

    Places are in the convention of `saccade.sensors`: (x, y) between the edges -1 and 1, y down.

    >>> centres = torch.tensor([[0.0, 0.0], [0.5, -0.5]])
    >>> trace = ImageTrace(
    ...     kind="gaze",
    ...     image=torch.zeros(28, 28),
    ...     steps=("3 12%", "7 98%"),
    ...     outlines=window_outlines(centres[:, None], torch.full((2, 1, 2), 0.25)),
    ... )
    >>> trace.centres
    tensor([[ 0.0000,  0.0000],
            [ 0.5000, -0.5000]])
    """

    kind: str
    """gaze, canvas, warp, overlay, ..."""
    image: Float[Tensor, "height width"] | Float[Tensor, "height width 3"]
    """What was looked at, or what was made in the end; 0 to 1, in grey or in colours."""
    steps: tuple[str, ...]
    """A label a step, such as what would be answered after it."""
    outlines: Float[Tensor, "step window 4 2"]
    """The four corners of each window, in order around it. The first window is the main one; there
    is none where all of the image is seen at every step."""
    pictures: Mapping[str, Float[Tensor, "step _ _"]] = field(default_factory=dict)
    """Rows of pictures, one a step, by name: what was seen, the canvas so far, ...; 0 to 1."""
    heat: Float[Tensor, "step row column"] | None = None
    """Of attention over a grid of cells: the weight of each at each step."""
    title: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Anything else worth keeping, as JSON."""

    def __post_init__(self) -> None:
        n_steps = {"outlines": len(self.outlines)}
        if self.heat is not None:
            n_steps["heat"] = len(self.heat)
        n_steps.update({name: len(picture) for name, picture in self.pictures.items()})
        wrong = {name: n for name, n in n_steps.items() if n != len(self.steps)}
        assert not wrong, f"{len(self.steps)} steps have labels, but there are {wrong}"

    @property
    def has_path(self) -> bool:
        """Whether there is a window that moves."""
        return self.outlines.shape[1] > 0

    @property
    def centres(self) -> Float[Tensor, "step 2"]:
        """The path of the main window."""
        return self.outlines[:, 0].mean(1)

    def image_at(
        self, step: int
    ) -> Float[Tensor, "height width"] | Float[Tensor, "height width 3"]:
        """The image at a step: a canvas is what had been drawn by then, anything else stays."""
        return self.pictures["canvas"][step] if self.kind == "canvas" else self.image

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        pictures = {name: each.detach().cpu().tolist() for name, each in self.pictures.items()}
        return {
            "kind": self.kind,
            "title": self.title,
            "steps": list(self.steps),
            "image": self.image.detach().cpu().tolist(),
            "outlines": self.outlines.detach().cpu().tolist(),
            "pictures": pictures,
            "heat": None if self.heat is None else self.heat.detach().cpu().tolist(),
            "meta": dict(self.meta),
        }


def window_outlines(
    centres: Float[Tensor, "*any 2"], half_sizes: Float[Tensor, "*any 2"]
) -> Float[Tensor, "*any 4 2"]:
    """The corners of upright windows: top left, top right, bottom right, bottom left."""
    signs = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    return centres[..., None, :] + half_sizes[..., None, :] * signs.to(centres)


def affine_outlines(theta: Float[Tensor, "*any 2 3"]) -> Float[Tensor, "*any 4 2"]:
    """The corners of the parallelogram that an affine map makes of the whole image's square."""
    signs = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]).to(theta)
    return signs @ theta[..., :2].mT + theta[..., None, :, 2]
