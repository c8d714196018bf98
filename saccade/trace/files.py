"""Traces on disk: safetensors and JSON."""

from __future__ import annotations

from pathlib import Path

from saccade.errors import StoreError
from saccade.store import read_manifest, read_tensors, write_folder
from saccade.trace.trace import Trace

KIND = "saccade trace"
WEIGHTS = "weights.safetensors"


def save_trace(path: str | Path, trace: Trace) -> None:
    """Write a trace as a folder.

    >>> import tempfile, torch
    >>> trace = Trace(kind="attention", steps=("a",), memory=("b",), weights=torch.ones(1, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_trace(f"{folder}/trace", trace)
    ...     load_trace(f"{folder}/trace").memory
    ('b',)
    """
    about = {name: value for name, value in trace.to_dict().items() if name != "weights"}
    write_folder(path, {"holds": KIND, **about}, {WEIGHTS: {"weights": trace.weights}})


def load_trace(path: str | Path) -> Trace:
    """Read what `save_trace` wrote."""
    manifest = read_manifest(path)
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
