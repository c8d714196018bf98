"""Photographs with captions: image files, and the formats of caption files."""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from saccade.errors import MissingPackageError, TaskError
from saccade.zoo.metrics.translation_metrics import plain_words
from saccade.zoo.tasks.books import read_lines, read_text
from saccade.zoo.tasks.datasets import find_data, generator_of
from saccade.zoo.tasks.mnist import as_images
from saccade.zoo.tasks.vocabulary import EOS, PAD, Ragged, Vocabulary


class Captioned(NamedTuple):
    """The name of an image file, and its captions in words."""

    name: str
    sentences: tuple[tuple[str, ...], ...]


class PhotographBatch(NamedTuple):
    """Photographs, and several captions of each."""

    images: Float[Tensor, "batch channel height width"]
    said: Int[Tensor, "batch sentence pos"]
    """Each ends in EOS and is padded with PAD; only PAD where there are fewer."""
    others: Int[Tensor, "other pos"]
    """Captions of missing photographs: text to train the language model on."""


@dataclass(frozen=True)
class Photographs:
    """Photographs and their captions, ready to be batched."""

    names: tuple[str, ...]
    images: UInt8[Tensor, "image colour height width"]
    sentences: tuple[tuple[tuple[str, ...], ...], ...]

    def __len__(self) -> int:
        return len(self.names)

    def said(self, vocabulary: Vocabulary) -> Int[Tensor, "image sentence pos"]:
        """All sentences, encoded."""
        most = max(map(len, self.sentences))
        rows = Ragged.of(
            [*vocabulary.encode(each[k]), EOS] if k < len(each) else []
            for each in self.sentences
            for k in range(most)
        )
        return rows.pad(torch.arange(len(rows))).ids.view(len(self), most, -1)

    def references(self) -> list[list[str]]:
        """The captions of each image, as metrics take them."""
        return [[" ".join(words) for words in each] for each in self.sentences]


class EncodedPhotographs(NamedTuple):
    """The training data of a captioner."""

    images: UInt8[Tensor, "image colour height width"]
    said: Int[Tensor, "image sentence pos"]
    """The sentences about each."""
    others: Ragged
    """Captions of missing photographs, each with its EOS; may be empty."""


class PhotographBatches(Sequence[PhotographBatch]):
    """All photographs once, in the order of one epoch; half of them mirrored.

    A batch depends only on seed, epoch and its number, and is generated on demand.

    Args:
        n_others: Number of captions without a photograph in a batch, drawn at random.
        crop: Side length in pixels of the random crop of each photograph.
    """

    def __init__(
        self,
        encoded: EncodedPhotographs,
        *,
        batch: int,
        n_others: int,
        crop: int,
        seed: int,
        epoch: int,
    ) -> None:
        self.encoded, self.crop, self.seed = encoded, crop, seed
        self.n_others = n_others if len(encoded.others) else 0
        order = torch.randperm(len(encoded.images), generator=generator_of(seed, epoch))
        self.parts = order.split(batch)
        self.first = 2**20 + epoch * len(self.parts)  # epochs use the steps below

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self.parts)

    def __getitem__(self, number: int) -> PhotographBatch:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        if not 0 <= number < len(self.parts):
            raise IndexError(number)
        rows, generator = self.parts[number], generator_of(self.seed, self.first + number)
        slack = self.encoded.images.shape[2] - self.crop
        top, left = torch.randint(0, slack + 1, (2,), generator=generator).tolist()
        down, across = slice(top, top + self.crop), slice(left, left + self.crop)
        images = self.encoded.images[rows][:, :, down, across]
        is_mirrored = torch.rand(len(rows), 1, 1, 1, generator=generator) < 0.5
        images = torch.where(is_mirrored, images.flip(3), images)
        said, others = _narrowed(self.encoded.said[rows]), self.encoded.others
        drawn = torch.randint(0, max(1, len(others)), (self.n_others,), generator=generator)
        return PhotographBatch(as_images(images), said, others.pad(drawn).ids)


def centre_crop(
    images: UInt8[Tensor, "image colour height width"], crop: int
) -> Float[Tensor, "image colour crop crop"]:
    """The centre crop of each image, for validation and test."""
    start = (images.shape[2] - crop) // 2
    return as_images(images[:, :, start : start + crop, start : start + crop])


def load_photographs(
    captioned: Sequence[Captioned], files: Mapping[str, bytes], *, size: int
) -> Photographs:
    """Decode the images of some captions.

    Args:
        files: The bytes of the image files, by name.
    """
    missing = [each.name for each in captioned if each.name not in files]
    if missing:
        raise TaskError(
            f"{len(missing)} of {len(captioned)} images are not there, such as {missing[0]}",
            hint="the captions may be of another data set than the images",
        )
    images = [decode_image(files[each.name], each.name, size=size) for each in captioned]
    return Photographs(
        tuple(each.name for each in captioned),
        torch.stack(images) if images else torch.zeros(0, 3, size, size, dtype=torch.uint8),
        tuple(each.sentences for each in captioned),
    )


def image_files(place: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The bytes of image files in a folder or in a tar archive, by the names asked for.

    In an archive, folders before the name are ignored.
    """
    wanted = set(names)
    if place.is_dir():
        paths = {name: place / name for name in wanted}
        return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    found = {}
    try:
        with tarfile.open(place) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in wanted and (held := archive.extractfile(member)) is not None:
                    found[name] = held.read()
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise TaskError(f"{place} is a broken archive: {error}", hint="fetch it again") from error
    except OSError as error:
        raise TaskError(
            f"could not read {place}: {error.strerror or error}", hint="check the path"
        ) from error
    return found


def decode_image(data: bytes, name: str, *, size: int) -> UInt8[Tensor, "3 height width"]:
    """The image in a file's bytes, in RGB, resized to a square."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingPackageError(
            "reading photographs needs the package 'pillow'", hint="pip install 'saccade[plot]'"
        ) from error
    try:
        with Image.open(io.BytesIO(data)) as opened:
            image = opened.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        why = "it is empty" if not data else type(error).__name__
        raise TaskError(
            f"{name} is no image: {why}", hint="give a JPEG or a PNG, or fetch the data again"
        ) from error
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, 3).permute(2, 0, 1).contiguous()


def _narrowed(said: Int[Tensor, "batch sentence pos"]) -> Int[Tensor, "batch sentence pos"]:
    """Without the columns that hold only padding."""
    return said[:, :, : int((said != PAD).sum(2).max())]


# Flickr8k: photographs of people and dogs, five sentences about each.

CAPTIONS, ALL_CAPTIONS = "captions.txt", "all-captions.txt"
# The images: an archive, or a folder named as in the usual download.
IMAGES = ("images.tar.gz", "images", "Images")


def read_flickr8k(
    part: Literal["train", "valid", "test"], data: str | Path | None = None, *, size: int
) -> Photographs:
    """One part of the photographs, as squares of ``size`` pixels.

    Of the images in the order of their names every ninth of ten is for validation, every tenth for
    the test: the lists of the published parts (6,000 / 1,000 / 1,000) name images that most copies
    with fewer photographs lack.
    """
    folder = find_data("flickr8k-1000", data)
    captioned = part_of(read_captions(folder / CAPTIONS), part)
    place = next((folder / name for name in IMAGES if (folder / name).exists()), None)
    if place is None:
        raise TaskError(
            f"there are captions in {folder} but no images", hint=f"expected {' or '.join(IMAGES)}"
        )
    files = image_files(place, (each.name for each in captioned))
    return load_photographs(captioned, files, size=size)


def read_other_sentences(data: str | Path | None = None) -> list[tuple[str, ...]]:
    """Captions of missing Flickr8k photographs: text to train the language model on."""
    folder = find_data("flickr8k-1000", data)
    here = {each.name for each in read_captions(folder / CAPTIONS)}
    everything = read_captions(folder / ALL_CAPTIONS)
    return [words for each in everything if each.name not in here for words in each.sentences]


def part_of(captioned: list[Captioned], part: Literal["train", "valid", "test"]) -> list[Captioned]:
    """Every tenth image for each of validation and test, the others for training."""
    ordered = sorted(captioned)
    held_out = {"valid": ordered[8::10], "test": ordered[9::10]}
    if part != "train":
        return held_out[part]
    return [each for number, each in enumerate(ordered) if number % 10 < 8]


def read_captions(path: Path) -> list[Captioned]:
    """The captions of each image, from lines ``image,caption`` after a header.

    Words are lower-cased and without punctuation, as in the splits of Karpathy and Fei-Fei.
    """
    found: dict[str, list[tuple[str, ...]]] = {}
    for name, sentence in _rows(path):
        if words := tuple(plain_words(sentence)):
            found.setdefault(name, []).append(words)
    return [Captioned(name, tuple(sentences)) for name, sentences in found.items()]


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    lines = read_lines(path)
    if not lines or lines[0].strip() != "image,caption":
        raise TaskError(
            f"{path} does not begin with the line image,caption",
            hint="that is the usual format of Flickr8k's captions",
        )
    for number, line in enumerate(lines[1:], start=2):
        name, comma, sentence = line.partition(",")
        if not comma:
            raise TaskError(
                f"line {number} of {path} has no caption: {line!r}", hint="expected image,caption"
            )
        yield name, sentence.strip().strip('"')


# Captions in the form of Karpathy and Fei-Fei: one JSON file for Flickr8k, Flickr30k or COCO.

# The names of the parts in the file. The rest of COCO's validation images is usually used for
# training.
PARTS = {"train": ("train", "restval"), "valid": ("val",), "test": ("test",)}


def read_karpathy(
    file: str | Path,
    part: Literal["train", "valid", "test"],
    *,
    images: str | Path,
    size: int,
) -> Photographs:
    """One part of a data set: captions from the file, photographs from a folder.

    Args:
        file: Such as ``dataset_coco.json``.
        images: The folder of the photographs; COCO's subfolders stay in it.
        size: Side length in pixels after resizing to a square.
    """
    captioned = read_karpathy_captions(file, part)
    files = image_files(Path(images), (each.name for each in captioned))
    return load_photographs(captioned, files, size=size)


def read_karpathy_captions(
    file: str | Path, part: Literal["train", "valid", "test"]
) -> list[Captioned]:
    """The captions of one part, with the file's tokens.

    Karpathy and Fei-Fei, 2015 (https://arxiv.org/abs/1412.2306): an object with ``images``, each
    with ``filename``, maybe ``filepath``, ``split``, and ``sentences`` with their ``tokens``.
    """
    try:
        held = json.loads(read_text(Path(file)))["images"]
        found = [_captioned(each) for each in held if each["split"] in PARTS[part]]
    except json.JSONDecodeError as error:
        raise TaskError(
            f"{file} is no JSON: {error.msg} at line {error.lineno}", hint="fetch it again"
        ) from error
    except (KeyError, TypeError) as error:
        raise TaskError(
            f"{file} is not in the format of Karpathy's splits: {error} is missing or of another "
            "kind",
            hint="expected images with filename, split and sentences with tokens",
        ) from error
    if not found:
        raise TaskError(
            f"{file} has no image of the part {part}",
            hint=f"expected some with split {' or '.join(PARTS[part])}",
        )
    return found


def _captioned(image: dict[str, Any]) -> Captioned:
    name = "/".join(filter(None, (image.get("filepath"), image["filename"])))
    return Captioned(name, tuple(tuple(each["tokens"]) for each in image["sentences"]))
