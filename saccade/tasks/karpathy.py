"""Captions in the form of Karpathy and Fei-Fei: one JSON file for Flickr8k, Flickr30k or COCO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from saccade.errors import TaskError
from saccade.tasks.photographs import Captioned, Photographs, image_files, load_photographs
from saccade.tasks.text_files import read_text

# The names of the parts in the file. COCO's rest of the validation images is usually learnt from.
PARTS = {"train": ("train", "restval"), "valid": ("val",), "test": ("test",)}


def read_karpathy(
    file: str | Path,
    part: Literal["train", "valid", "test"],
    *,
    images: str | Path,
    size: int,
) -> Photographs:
    """One part of a data set: its sentences from the file, its photographs from a folder.

    Args:
        file: Such as ``dataset_coco.json``.
        images: Where the photographs are; COCO's keep their own folders in it.
        size: Pixels of the squares that they are made.
    """
    captioned = read_karpathy_captions(file, part)
    files = image_files(Path(images), (each.name for each in captioned))
    return load_photographs(captioned, files, size=size)


def read_karpathy_captions(
    file: str | Path, part: Literal["train", "valid", "test"]
) -> list[Captioned]:
    """The sentences of one part, in the words that the file splits them into.

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
            f"{file} is not in the form of Karpathy's splits: {error} is missing or of another "
            "kind",
            hint="expected images with filename, split and sentences with tokens",
        ) from error
    if not found:
        raise TaskError(
            f"{file} has no image of the part {part}",
            hint=f"it should have some with split {' or '.join(PARTS[part])}",
        )
    return found


def _captioned(image: dict[str, Any]) -> Captioned:
    name = "/".join(filter(None, (image.get("filepath"), image["filename"])))
    return Captioned(name, tuple(tuple(each["tokens"]) for each in image["sentences"]))
