"""Data sets in the format of the real ones, just large enough for a few training steps.

Nothing can be learnt from them: they are for tests of devices, not of results.
"""

from __future__ import annotations

import io
import json
import tarfile
import wave
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from PIL import Image

GERMAN = ("Ein Hund läuft .", "Eine Katze schläft .", "Ein kleiner Hund schläft im Gras .")
ENGLISH = ("A dog runs .", "A cat sleeps in sun", "A small dog rests on the wet grass , well .")
SAID = ("the cat sat on the mat.", "the dog, too, sat on the mat!", "a cat is no dog.")
BOOKS = ("austen-emma", "chesterton-thursday", "austen-persuasion", "carroll-alice")
STORY = "1 {0} went to the hall.\n2 {1} took the milk.\n3 Where is {0}?\thall\t1\n"
TREE = "( (S (NP-SBJ (DT the) (NN {0})) (VP (VBD sat) (PP (IN on) (NP (DT the) (NN {1})))) (. .)) )"
NAMES = ("Mary", "John", "Bela", "Dora", "Tamo", "Miro")
WRITERS = tuple(f"x/{name}1.dat" for name in ("anna", "bo", "cy", "dora", "ed", "flo", "gus"))


def write_translations(folder: Path) -> None:
    """Multi30k."""
    (folder / "multi30k").mkdir()
    for part, n in (("train", 3), ("val", 2), ("test_2016_flickr", 2)):
        for language, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "\n".join(lines[:n]) + "\n"
            (folder / "multi30k" / f"{part}.{language}").write_text(text, encoding="utf-8")


def write_texts(folder: Path) -> None:
    """Tiny Shakespeare and books of generated sentences."""
    (folder / "tinyshakespeare").mkdir()
    (folder / "tinyshakespeare" / "input.txt").write_text("\n".join(SAID * 10) + "\n")
    (folder / "gutenberg").mkdir()
    for shift, book in enumerate(BOOKS):
        lines = []
        for row in range(30):
            first, second = (NAMES[(at + shift) % len(NAMES)] for at in (row, row * row + 1))
            lines += [f"And so {first} went on.", f"It was {second} who held the lamp."]
        (folder / "gutenberg" / f"{book}.txt").write_text("\n\n".join(lines))


def write_stories(folder: Path) -> None:
    """The first task of bAbI, in both sizes."""
    stories = "".join(STORY.format(NAMES[row % 6], NAMES[row % 5]) for row in range(40))
    texts = {
        f"tasks_1-20_v1-2/{size}/qa1_one-fact_{part}.txt": stories.encode()
        for size in ("en", "en-10k")
        for part in ("train", "test")
    }
    _pack(folder / "babi-tasks-v1-2.tar.gz", texts)


def write_photographs(folder: Path) -> None:
    """Images of one colour, whose captions name the colour."""
    place = folder / "flickr8k-1000"
    (place / "images").mkdir(parents=True)
    lines = ["image,caption"]
    for number in range(40):
        colour = ("red", "green", "blue")[number % 3]
        Image.new("RGB", (30, 20), colour).save(place / "images" / f"{number:02}.png")
        lines += [f"{number:02}.png,a {colour} thing", f"{number:02}.png,something {colour}"]
    (place / "captions.txt").write_text("\n".join(lines))
    (place / "all-captions.txt").write_text("\n".join([*lines, "x.png,a red thing"]))


def write_recordings(folder: Path) -> None:
    """Spoken digits: noise of two speakers."""
    chance, recordings = torch.Generator().manual_seed(0), {}
    for speaker in ("ann", "bob"):
        for digit in range(10):
            for take in (0, 5, 47):
                held = io.BytesIO()
                with wave.open(held, "wb") as file:
                    file.setparams((1, 2, 8000, 0, "NONE", ""))
                    noise = 3000 * torch.randn(600, generator=chance)
                    file.writeframes(noise.short().numpy().tobytes())
                recordings[f"recordings/{digit}_{speaker}_{take}.wav"] = held.getvalue()
    _pack(folder / "free-spoken-digit-dataset.tar.gz", recordings)


def write_pen_words(folder: Path) -> None:
    """Words of seven writers; each letter is a stroke of three points."""
    lines = [
        {
            "writer": writer,
            "label": label,
            "strokes": [
                [[9 * at + row, 3 * at], [9 * at + 4, 7 + row], [9 * at + 8, 2 * row]]
                for at in range(len(label))
            ],
        }
        for row, writer in enumerate(WRITERS)
        for label in ("lo", "ol", "vol", "lov")
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "words.jsonl").write_text(text, encoding="utf-8")


def write_trees(folder: Path) -> None:
    """A treebank with one sentence pattern."""
    nouns = ("cat", "dog", "mat", "Gorbachev", "reselling")
    with zipfile.ZipFile(folder / "treebank.zip", "w") as archive:
        for number in range(1, 31):
            text = TREE.format(nouns[number % 5], nouns[number % 3])
            archive.writestr(f"treebank/combined/wsj_{number:04}.mrg", text)


def _pack(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as packed:
        for name, held in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(held)
            packed.addfile(entry, io.BytesIO(held))


WRITTEN = (
    write_translations,
    write_texts,
    write_stories,
    write_photographs,
    write_recordings,
    write_pen_words,
    write_trees,
)
