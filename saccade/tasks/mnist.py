"""MNIST: 70,000 handwritten digits of 28 x 28 pixels."""

from pathlib import Path
from typing import Literal, NamedTuple

from jaxtyping import Int, UInt8
from torch import Tensor

from saccade.errors import TaskError
from saccade.tasks.fetch import find_data
from saccade.tasks.idx import read_idx

N_VALID = 5000
"""The last images of the published training part; the test part stays untouched."""


class Digits(NamedTuple):
    """Images and what they show."""

    images: UInt8[Tensor, "image height width"]
    labels: Int[Tensor, " image"]


def read_mnist(part: Literal["train", "valid", "test"], data: str | Path | None = None) -> Digits:
    """One part: 55,000 to learn from, 5,000 to choose by, 10,000 to report on."""
    folder = find_data("mnist", data)
    prefix = "t10k" if part == "test" else "train"
    images = read_idx(_file(folder, f"{prefix}-images-idx3-ubyte"))
    labels = read_idx(_file(folder, f"{prefix}-labels-idx1-ubyte")).long()
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise TaskError(
            f"the {prefix} part in {folder} does not fit together: images of shape "
            f"{tuple(images.shape)}, labels of shape {tuple(labels.shape)}",
            hint="fetch it again",
        )
    cut = {"train": slice(None, -N_VALID), "valid": slice(-N_VALID, None), "test": slice(None)}
    return Digits(images[cut[part]], labels[cut[part]])


def _file(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.gz"
    return packed if packed.is_file() else folder / name
