"""Flickr8k: photographs of people and dogs, five sentences about each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from saccade.errors import TaskError
from saccade.metrics.references import plain_words
from saccade.tasks.fetch import find_data
from saccade.tasks.photographs import Captioned, Photographs, image_files, load_photographs
from saccade.tasks.text_files import read_lines

CAPTIONS, ALL_CAPTIONS = "captions.txt", "all-captions.txt"
# How the images come: packed, or in a folder of the name that the usual download has.
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
    """Sentences about photographs of Flickr8k that are not here: to learn the language from."""
    folder = find_data("flickr8k-1000", data)
    here = {each.name for each in read_captions(folder / CAPTIONS)}
    everything = read_captions(folder / ALL_CAPTIONS)
    return [words for each in everything if each.name not in here for words in each.sentences]


def part_of(captioned: list[Captioned], part: Literal["train", "valid", "test"]) -> list[Captioned]:
    """Every tenth image for each of validation and test, the others to learn from."""
    ordered = sorted(captioned)
    held_out = {"valid": ordered[8::10], "test": ordered[9::10]}
    if part != "train":
        return held_out[part]
    return [each for number, each in enumerate(ordered) if number % 10 < 8]


def read_captions(path: Path) -> list[Captioned]:
    """The sentences of each image, out of lines ``image,caption`` after a heading.

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
            hint="that is the form in which Flickr8k's captions are usually found",
        )
    for number, line in enumerate(lines[1:], start=2):
        name, comma, sentence = line.partition(",")
        if not comma:
            raise TaskError(
                f"line {number} of {path} has no caption: {line!r}", hint="expected image,caption"
            )
        yield name, sentence.strip().strip('"')
