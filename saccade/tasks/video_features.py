"""Films of which features were computed before, with sentences: the form of YouTube2Text.

The clips of YouTube2Text (MSVD) cannot be had any more from where they were; what circulates is one
vector a frame, from some image net, and about forty sentences a clip. Read here:

- ``sents_train_lc_nopunc.txt``, ``sents_val_...``, ``sents_test_...``: a clip and a sentence on
  each line with a tab between, as Venugopalan et al., 2015 (https://arxiv.org/abs/1505.00487) have
  published them;
- the features of each part in lines ``vid1_frame_1,0.1,0.7,...`` (``*_train.txt`` of the same), or
  of all clips in ``features.safetensors``, a tensor ``[frame, d]`` named for each clip.

Yao et al., 2015 (https://arxiv.org/abs/1502.08029) published theirs as pickles, which this project
never reads; as a safetensors file they can be used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import TaskError
from saccade.store.tensors import load_tensors
from saccade.tasks.text_files import read_lines

PARTS = {"train": "train", "valid": "val", "test": "test"}
TENSORS = "features.safetensors"
N_FRAMES = 28
"""Of each clip, evenly spaced: what Yao et al. take (section 5.2)."""
FRAME = re.compile(r"(.+)_frame_(\d+)")


class Films(NamedTuple):
    """Clips and what was said about each."""

    names: tuple[str, ...]
    features: Float[Tensor, "film frame d_frame"]
    sentences: tuple[tuple[tuple[str, ...], ...], ...]

    def references(self) -> list[list[str]]:
        """The sentences of each clip, as metrics take them."""
        return [[" ".join(words) for words in each] for each in self.sentences]


def read_video_features(
    folder: str | Path, part: Literal["train", "valid", "test"], *, n_frames: int = N_FRAMES
) -> Films:
    """One part: its clips with so many frames each, evenly spaced."""
    folder = Path(folder)
    sentences = _sentences(folder / f"sents_{PARTS[part]}_lc_nopunc.txt")
    features = _features(folder, PARTS[part])
    missing = [name for name in sentences if name not in features]
    if missing:
        raise TaskError(
            f"{len(missing)} of {len(sentences)} clips in {folder} have no features, such as "
            f"{missing[0]}",
            hint="sentences and features may be of different parts",
        )
    frames = torch.stack([evenly(features[name], n_frames) for name in sentences])
    return Films(tuple(sentences), frames, tuple(map(tuple, sentences.values())))


def evenly(frames: Float[Tensor, "frame d"], n: int) -> Float[Tensor, "n d"]:
    """So many frames, evenly spaced; of fewer, some several times.

    >>> evenly(torch.arange(7.0)[:, None], 3)[:, 0]
    tensor([1., 3., 5.])
    """
    at = ((torch.arange(n) + 0.5) * len(frames) / n).long()
    return frames[at]


def _sentences(path: Path) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        name, tab, text = line.partition("\t")
        if not tab or not text.split():
            raise TaskError(
                f"line {number} of {path} has no sentence: {line[:60]!r}",
                hint="expected a clip, a tab and a sentence",
            )
        found.setdefault(name, []).append(tuple(text.split()))
    return found


def _features(folder: Path, part: str) -> Mapping[str, Float[Tensor, "frame d"]]:
    if (folder / TENSORS).is_file():
        return load_tensors(folder / TENSORS)
    files = [each for each in sorted(folder.glob(f"*_{part}.txt*")) if "sents_" not in each.name]
    if len(files) != 1:
        raise TaskError(
            f"expected {TENSORS} or one file *_{part}.txt of features in {folder}, found "
            f"{len(files)}",
            hint="put the features of one image net there, and no others",
        )
    return _by_clip(files[0], read_lines(files[0]))


def _by_clip(path: Path, lines: Sequence[str]) -> dict[str, Float[Tensor, "frame d"]]:
    found: dict[str, dict[int, list[float]]] = {}
    for number, line in enumerate(lines, start=1):
        label, *values = line.split(",")
        match = FRAME.fullmatch(label)
        try:
            numbers = [float(value) for value in values]
        except ValueError:
            numbers = []
        if match is None or not numbers:
            raise TaskError(
                f"line {number} of {path} is no frame: {line[:60]!r}",
                hint="expected vid1_frame_1 and its numbers, with commas",
            )
        found.setdefault(match[1], {})[int(match[2])] = numbers
    try:
        return {name: torch.tensor([of[at] for at in sorted(of)]) for name, of in found.items()}
    except ValueError as error:
        raise TaskError(
            f"the frames in {path} are not all of one size: {error}", hint="fetch it again"
        ) from error
