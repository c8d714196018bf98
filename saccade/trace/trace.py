"""A trace: the attention weights over the memory at each step of the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import StoreError
from saccade.store.folder import read_folder, write_folder
from saccade.store.schema import conform, with_digest, without_digest
from saccade.viewer.export import Shown, traces_page

UPRIGHT = frozenset({"hops"})
"""Kinds whose memory is a list of sentences, drawn from top to bottom."""


class Look(NamedTuple):
    """A position of the memory and its weight."""

    label: str
    position: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Where attention went while a model produced an output.

    >>> import torch
    >>> trace = Trace(
    ...     kind="attention",
    ...     steps=("the", "cat"),
    ...     memory=("die", "Katze", "."),
    ...     weights=torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1]]),
    ... )
    >>> [trace.most(step, top=1)[0].label for step in range(2)]
    ['die', 'Katze']
    """

    kind: str
    """attention, self-attention, hops, ...; ``document`` where the memory is running text."""
    steps: tuple[str, ...]
    """The output, one label per step."""
    memory: tuple[str, ...]
    """The memory, one label per position."""
    weights: Float[Tensor, "step key_pos"] | Float[Tensor, "view step key_pos"]
    """With several views (heads or hops) these are the first axis."""
    views: tuple[str, ...] = ()
    """A name for each view, such as ``0.3`` for head 3 of layer 0."""
    title: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Any other information, as JSON."""

    def __post_init__(self) -> None:
        n_views = (len(self.views),) if self.weights.dim() == 3 else ()
        expected = (*n_views, len(self.steps), len(self.memory))
        assert tuple(self.weights.shape) == expected, (
            f"weights are {tuple(self.weights.shape)}, their labels say {expected}"
        )
        assert self.weights.dim() == 3 or not self.views, "one view needs no name"

    @property
    def n_views(self) -> int:
        """Number of heads or hops."""
        return len(self.views) or 1

    @property
    def is_upright(self) -> bool:
        """True if the memory is drawn from top to bottom and the steps from left to right."""
        return self.kind in UPRIGHT

    @property
    def by_view(self) -> Float[Tensor, "view step key_pos"]:
        """The weights with an axis for views, even if there is only one."""
        weights = self.weights.detach().float().cpu()
        return weights if weights.dim() == 3 else weights[None]

    def most(self, step: int, *, top: int = 3) -> tuple[Look, ...]:
        """The positions of the largest weights at a step, averaged over views; without zeros."""
        weights = self.by_view[:, step].mean(0)  # [key_pos]
        best = weights.topk(min(top, len(weights)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(Look(self.memory[at], at, weight) for at, weight in pairs if weight > 0)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return {
            "kind": self.kind,
            "title": self.title,
            "steps": list(self.steps),
            "memory": list(self.memory),
            "views": list(self.views),
            "weights": self.weights.detach().cpu().tolist(),
            "meta": dict(self.meta),
        }

    def to_html(self) -> str:
        """One page that works offline: the output, and the weights of each step."""
        return traces_page([self.to_dict()])

    def _repr_html_(self) -> str:
        return Shown(self.to_html())._repr_html_()


# A trace over an image: the windows at each step, and what was seen.


@dataclass(frozen=True, kw_only=True)
class ImageTrace:
    """Where a model looked or wrote in an image, and the pictures at each step.

    Locations are in the convention of `saccade.zoo.sensors`: (x, y) between the edges -1 and 1, y
    down.

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
    """The input image, or the final generated one; 0 to 1, in grey or in colour."""
    steps: tuple[str, ...]
    """One label per step, such as the answer after it."""
    outlines: Float[Tensor, "step window 4 2"]
    """The four corners of each window, in order around it. The first window is the main one; there
    is none if every step sees the whole image."""
    pictures: Mapping[str, Float[Tensor, "step _ _"]] = field(default_factory=dict)
    """Rows of pictures, one per step, by name: what was seen, the canvas so far, ...; 0 to 1."""
    heat: Float[Tensor, "step row column"] | None = None
    """For attention over a grid of cells: the weight of each cell at each step."""
    title: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Any other information, as JSON."""

    def __post_init__(self) -> None:
        n_steps = {"outlines": len(self.outlines)}
        if self.heat is not None:
            n_steps["heat"] = len(self.heat)
        n_steps.update({name: len(picture) for name, picture in self.pictures.items()})
        wrong = {name: n for name, n in n_steps.items() if n != len(self.steps)}
        assert not wrong, f"{len(self.steps)} steps have labels, but there are {wrong}"

    @property
    def has_path(self) -> bool:
        """True if there is a window that moves."""
        return self.outlines.shape[1] > 0

    @property
    def centres(self) -> Float[Tensor, "step 2"]:
        """The path of the main window."""
        return self.outlines[:, 0].mean(1)

    def image_at(
        self, step: int
    ) -> Float[Tensor, "height width"] | Float[Tensor, "height width 3"]:
        """The image at a step: a canvas as drawn so far, any other image unchanged."""
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

    def to_html(self) -> str:
        """One page that works offline: the image, step by step."""
        return traces_page([self.to_dict()])

    def _repr_html_(self) -> str:
        return Shown(self.to_html())._repr_html_()


def window_outlines(
    centres: Float[Tensor, "*any 2"], half_sizes: Float[Tensor, "*any 2"]
) -> Float[Tensor, "*any 4 2"]:
    """The corners of upright windows: top left, top right, bottom right, bottom left."""
    signs = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    return centres[..., None, :] + half_sizes[..., None, :] * signs.to(centres)


def affine_outlines(theta: Float[Tensor, "*any 2 3"]) -> Float[Tensor, "*any 4 2"]:
    """The corners of the parallelogram to which an affine map takes the whole image."""
    signs = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]).to(theta)
    return signs @ theta[..., :2].mT + theta[..., None, :, 2]


# Traces on disk: safetensors and JSON.

KIND, IMAGE_KIND = "saccade trace", "saccade image trace"
WEIGHTS = "weights.safetensors"
PICTURES = "pictures.safetensors"
PICTURE = "picture: "  # prefix of the names of rows of pictures: none collides with the image


def save_trace(path: str | Path, trace: Trace | ImageTrace) -> None:
    """Write a trace as a folder.

    >>> import tempfile, torch
    >>> trace = Trace(kind="attention", steps=("a",), memory=("b",), weights=torch.ones(1, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_trace(f"{folder}/trace", trace)
    ...     load_trace(f"{folder}/trace").memory
    ('b',)
    """
    if isinstance(trace, Trace):
        about = {name: value for name, value in trace.to_dict().items() if name != "weights"}
        manifest = {"holds": KIND, **with_digest(about)}
        write_folder(path, manifest, {WEIGHTS: {"weights": trace.weights}})
        return
    about = {
        "kind": trace.kind,
        "title": trace.title,
        "steps": list(trace.steps),
        "pictures": list(trace.pictures),
        "meta": dict(trace.meta),
    }
    tensors = {"image": trace.image, "outlines": trace.outlines}
    tensors |= {f"{PICTURE}{name}": each for name, each in trace.pictures.items()}
    if trace.heat is not None:
        tensors["heat"] = trace.heat
    tensors = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    write_folder(path, {"holds": IMAGE_KIND, **with_digest(about)}, {PICTURES: tensors})


def load_trace(path: str | Path) -> Trace | ImageTrace:
    """Read what `save_trace` wrote."""
    folder = read_folder(path)
    readers = {KIND: (_About, WEIGHTS, _trace), IMAGE_KIND: (_ImageAbout, PICTURES, _image_trace)}
    holds = folder.manifest.get("holds")
    if not isinstance(holds, str) or holds not in readers:
        raise StoreError(f"{path} holds no trace", hint="`saccade trace RUN INPUT --out` makes one")
    kind, file, make = readers[holds]
    where = Path(path) / "manifest.json"
    rest = ("format", "files", "holds")
    entries = {name: value for name, value in folder.manifest.items() if name not in rest}
    about = conform(kind, without_digest(entries, where=where), where=where)
    try:
        return make(about, folder.tensors[file])
    except (LookupError, AssertionError) as error:
        raise StoreError(
            f"{path} is damaged: its labels do not fit its tensors ({error})",
            hint="`saccade trace RUN INPUT --out` makes it again",
        ) from error


@dataclass(frozen=True, kw_only=True)
class _About:
    """A trace's entry in the manifest."""

    kind: str
    title: str
    steps: tuple[str, ...]
    memory: tuple[str, ...]
    views: tuple[str, ...]
    meta: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _ImageAbout:
    """An image trace's entry in the manifest."""

    kind: str
    title: str
    steps: tuple[str, ...]
    pictures: tuple[str, ...]
    meta: dict[str, Any]


def _trace(about: _About, held: dict[str, Tensor]) -> Trace:
    return Trace(
        kind=about.kind,
        steps=about.steps,
        memory=about.memory,
        weights=held["weights"],
        views=about.views,
        title=about.title,
        meta=about.meta,
    )


def _image_trace(about: _ImageAbout, held: dict[str, Tensor]) -> ImageTrace:
    return ImageTrace(
        kind=about.kind,
        image=held["image"],
        steps=about.steps,
        outlines=held["outlines"],
        pictures={name: held[f"{PICTURE}{name}"] for name in about.pictures},
        heat=held.get("heat"),
        title=about.title,
        meta=about.meta,
    )
