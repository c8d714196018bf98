"""Traces on disk: safetensors and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from saccade.errors import StoreError
from saccade.store import read_manifest, read_tensors, write_folder
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
        write_folder(path, {"holds": KIND, **about}, {WEIGHTS: {"weights": trace.weights}})
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
    write_folder(path, {"holds": IMAGE_KIND, **about}, {PICTURES: tensors})


def load_trace(path: str | Path) -> Trace | ImageTrace:
    """Read what `save_trace` wrote."""
    manifest = read_manifest(path)
    if manifest.get("holds") == IMAGE_KIND:
        return _image_trace(path, manifest)
    if manifest.get("holds") != KIND:
        raise StoreError(f"{path} holds no trace", hint="`saccade trace RUN INPUT --out` makes one")
    return Trace(
        kind=manifest["kind"],
        steps=tuple(manifest["steps"]),
        memory=tuple(manifest["memory"]),
        weights=read_tensors(path, WEIGHTS)["weights"],
        views=tuple(manifest["views"]),
        title=manifest["title"],
        meta=manifest["meta"],
    )


def _image_trace(path: str | Path, manifest: dict[str, Any]) -> ImageTrace:
    held = read_tensors(path, PICTURES)
    return ImageTrace(
        kind=manifest["kind"],
        image=held["image"],
        steps=tuple(manifest["steps"]),
        outlines=held["outlines"],
        pictures={name: held[f"{PICTURE}{name}"] for name in manifest["pictures"]},
        heat=held.get("heat"),
        title=manifest["title"],
        meta=manifest["meta"],
    )
