"""Videos with captions: moving MNIST digits, and features in the format of YouTube2Text.

The clips of YouTube2Text (MSVD) are no longer available at their source; copies hold one vector a
frame, from some image net, and about forty captions a clip. Read here:

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
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import TaskError
from saccade.store.folder import load_tensors
from saccade.zoo.tasks.books import read_lines
from saccade.zoo.tasks.digit_captions import NAMES, DigitEpoch, DigitSentences, Sentences
from saccade.zoo.tasks.mnist import SIDE, Digits, as_images, pixels_of
from saccade.zoo.tasks.vocabulary import EOS, SYMBOLS, Vocabulary

# Videos of MNIST digits that appear one after the other and move, with captions.
#
# ``seven moves left then two moves up``: the digits are real, their motion is synthetic, and the
# frames of each are known. So attention over time can be evaluated, as attention over an image in
# `saccade.zoo.tasks.digit_captions`. A single frame shows the digit, but not its direction.
#
# These videos replace the YouTube2Text of Yao et al., 2015 (https://arxiv.org/abs/1502.08029).

N_FRAMES = 16
MOST = 3
"""Maximum number of digits in a video."""
SHORTEST, LONGEST = 4, 5
"""Frames in which a digit is visible; a video has three times the maximum."""
SPEED = 2  # pixels a frame
WAYS = ("up", "down", "left", "right")
STEPS = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])
"""Of each direction: rows and columns."""
VOCABULARY = Vocabulary((*SYMBOLS, *NAMES, *WAYS, "moves", "then"))
"""All words of these sentences."""
N_WORDS = 4
"""About one digit, with what links it to the next or ends the sentence."""
NAME, WAY = 0, 2  # which of them is the name, and which the direction
REACH = SPEED * (LONGEST - 1)  # maximum movement of a digit in pixels


class FilmBatch(NamedTuple):
    """Videos, a caption of each, and the digit that each word describes."""

    frames: Float[Tensor, "batch frame 1 height width"]
    """0 is background, 1 is ink."""
    sentences: Sentences
    about: Int[Tensor, "batch pos"]
    """The digit whose name or direction a word gives; -1 for all other words."""
    spans: Int[Tensor, "batch digit 2"]
    """The first frame in which each digit is visible, and the first after it."""


class MovingDigits(DigitEpoch[FilmBatch]):
    """The batches of one epoch; every digit is the first one of a video once."""

    n_together = MOST
    smallest = SIDE + REACH
    why_so_large = f"a digit has {SIDE}, and must have room to move"

    def make(self, chosen: Int[Tensor, "batch digit"], generator: torch.Generator) -> FilmBatch:
        """A batch of these digits."""
        return make_films(self.digits, chosen, size=self.size, generator=generator)


def make_films(
    digits: Digits, chosen: Int[Tensor, "batch digit"], *, size: int, generator: torch.Generator
) -> FilmBatch:
    """A batch of videos in one operation.

    Args:
        chosen: The digits of each video; the first one, two or three of them are visible.
    """
    n = len(chosen)
    n_seen = torch.randint(1, MOST + 1, (n, 1), generator=generator)
    spans = _spans(n_seen, generator)
    ways = torch.randint(0, len(WAYS), (n, MOST), generator=generator)
    frames = _film(digits, chosen, spans, ways, size=size, generator=generator)
    said, about = _say(digits.labels[chosen], ways, n_seen)
    return FilmBatch(as_images(frames), Sentences.of(said), about, spans)


def _spans(
    n_seen: Int[Tensor, "batch 1"], generator: torch.Generator
) -> Int[Tensor, "batch digit 2"]:
    """The frames of each digit: one after the other, with the remaining frames as gaps."""
    shape = (len(n_seen), MOST)
    lasting = torch.randint(SHORTEST, LONGEST + 1, shape, generator=generator)
    lasting = lasting.where(torch.arange(MOST) < n_seen, 0)
    left = N_FRAMES - lasting.sum(1, keepdim=True)
    # Sorted draws split the remaining frames into gaps: before each digit, and after the last.
    waits = (torch.rand(shape, generator=generator) * (left + 1)).long().sort(1).values
    ends = lasting.cumsum(1) + waits
    return torch.stack([ends - lasting, ends], dim=2)


def _film(
    digits: Digits,
    chosen: Int[Tensor, "batch digit"],
    spans: Int[Tensor, "batch digit 2"],
    ways: Int[Tensor, "batch digit"],
    *,
    size: int,
    generator: torch.Generator,
) -> Tensor:
    """The frames: every pixel of every digit in every frame is written by one operation."""
    n, room = len(chosen), size - SIDE
    frame = torch.arange(N_FRAMES)[:, None]  # [frame, 1]
    since = frame - spans[:, None, :, 0]  # [batch, frame, digit]
    is_seen = (since >= 0) & (frame < spans[:, None, :, 1])
    way = STEPS[ways]  # [batch, digit, 2]
    # Along its direction a digit starts where it stays inside the frame, across it anywhere.
    across = torch.randint(0, room + 1, (n, MOST, 2), generator=generator)
    along = torch.randint(0, room - REACH + 1, (n, MOST, 2), generator=generator)
    start = torch.where(way == 0, across, torch.where(way > 0, along, room - along))
    corners = start[:, None] + SPEED * way[:, None] * since.clamp(0, LONGEST - 1)[..., None]
    pixels = digits.images[chosen].flatten(2)[:, None] * is_seen[..., None]
    canvas = torch.zeros(n * N_FRAMES, size * size, dtype=torch.uint8)
    places = pixels_of(corners.flatten(0, 1), SIDE, size)
    canvas.scatter_reduce_(1, places, pixels.flatten(0, 1).flatten(1), "amax")
    return canvas.view(n, N_FRAMES, 1, size, size)


def _say(
    labels: Int[Tensor, "batch digit"],
    ways: Int[Tensor, "batch digit"],
    n_seen: Int[Tensor, "batch 1"],
) -> DigitSentences:
    """The sentences: four words a digit, of which the last links it to the next or is the end."""
    moves, then = VOCABULARY.encode(["moves", "then"])
    left = n_seen - torch.arange(MOST)  # digits still to be described, this one included
    words = torch.stack(
        [
            labels + VOCABULARY.ids[NAMES[0]],
            torch.full_like(labels, moves),
            ways + VOCABULARY.ids[WAYS[0]],
            torch.where(left > 1, then, EOS),
        ],
        dim=2,
    )  # [batch, digit, word]
    return DigitSentences.of(words, n_told=n_seen, telling=(NAME, WAY))


PARTS = {"train": "train", "valid": "val", "test": "test"}
TENSORS = "features.safetensors"
N_STORED_FRAMES = 28
"""Of each clip, evenly spaced: what Yao et al. take (section 5.2)."""
FRAME = re.compile(r"(.+)_frame_(\d+)")


class Films(NamedTuple):
    """Clips and their captions."""

    names: tuple[str, ...]
    features: Float[Tensor, "film frame d_frame"]
    sentences: tuple[tuple[tuple[str, ...], ...], ...]

    def references(self) -> list[list[str]]:
        """The captions of each clip, as metrics take them."""
        return [[" ".join(words) for words in each] for each in self.sentences]


def read_video_features(
    folder: str | Path,
    part: Literal["train", "valid", "test"],
    *,
    n_frames: int = N_STORED_FRAMES,
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
    """``n`` frames, evenly spaced; with fewer frames, some are repeated.

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
