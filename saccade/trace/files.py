"""Traces on disk: safetensors and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.errors import StoreError
from saccade.store import conform, read_folder, with_digest, without_digest, write_folder
from saccade.trace.image_trace import ImageTrace
from saccade.trace.trace import Trace

KIND, IMAGE_KIND = "saccade trace", "saccade image trace"
WEIGHTS = "weights.safetensors"
PICTURES = "pictures.safetensors"
PICTURE = "picture: "  # before the name of a row of pictures, so that none is taken for the image


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
        told = {"holds": KIND, **with_digest(about)}
        write_folder(path, told, {WEIGHTS: {"weights": trace.weights}})
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
    told = {name: value for name, value in folder.manifest.items() if name not in rest}
    about = conform(kind, without_digest(told, where=where), where=where)
    try:
        return make(about, folder.tensors[file])
    except (LookupError, AssertionError) as error:
        raise StoreError(
            f"{path} is damaged: its labels do not fit its tensors ({error})",
            hint="`saccade trace RUN INPUT --out` makes it again",
        ) from error


@dataclass(frozen=True, kw_only=True)
class _About:
    """What the manifest says of a trace."""

    kind: str
    title: str
    steps: tuple[str, ...]
    memory: tuple[str, ...]
    views: tuple[str, ...]
    meta: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _ImageAbout:
    """What the manifest says of a trace over an image."""

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
