"""The mean of the weights of the last validations.

Vaswani et al., 2017 (https://arxiv.org/abs/1706.03762), section 6.1, average the last 5 (or
20) checkpoints, written every ten minutes; here they are those of the validations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from saccade.store import load_tensors, save_tensors


def keep_recent(folder: Path, weights: Mapping[str, Tensor], *, step: int, n: int) -> None:
    """Keep these weights, and of the earlier ones the latest ``n - 1``."""
    save_tensors(folder / f"{step:09d}.safetensors", weights)
    for old in _files(folder)[:-n]:
        old.unlink()


def forget_after(folder: Path, step: int) -> None:
    """Remove what a killed run kept after the step at which it is taken up again."""
    for file in _files(folder):
        if int(file.stem) > step:
            file.unlink()


def average_recent(folder: Path) -> dict[str, Tensor]:
    """The mean of all that was kept; whole numbers (counters) are the latest's."""
    files = _files(folder)
    latest = load_tensors(files[-1])
    sums = {name: value.double() for name, value in latest.items() if value.is_floating_point()}
    for file in files[:-1]:
        for name, value in load_tensors(file, names=sums).items():
            sums[name] += value
    means = {name: (total / len(files)).to(latest[name].dtype) for name, total in sums.items()}
    return {**latest, **means}


def _files(folder: Path) -> list[Path]:
    """Whole files, oldest first; hidden ones were left by a killed process."""
    found = folder.glob("*.safetensors") if folder.is_dir() else []
    return sorted(file for file in found if file.stem.isdecimal())
