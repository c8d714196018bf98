"""16 books of Project Gutenberg, as NLTK collects them: running words for language models."""

from __future__ import annotations

import re
from pathlib import Path

from saccade.errors import TaskError
from saccade.tasks.data_sets import GUTENBERG
from saccade.tasks.fetch import find_data
from saccade.tasks.text import TextSplits, split_text
from saccade.tasks.text_files import read_text
from saccade.tasks.words import split_words

_BETWEEN_PARAGRAPHS = re.compile(r"\n\s*\n")


def read_gutenberg(
    data: str | Path | None = None, *, valid: float = 0.05, test: float = 0.1
) -> TextSplits:
    """One paragraph a line, words and punctuation marks between spaces (`split_words`).

    The last part of each book is for the test, the one before it to choose by. Books that are
    missing are left out, so a folder with one book will do.
    """
    folder = find_data("gutenberg", data)
    parts: list[list[str]] = [[], [], []]
    for file in GUTENBERG.files:
        path = folder / file.name.removesuffix(".gz")
        if path.is_file() or path.with_name(file.name).is_file():
            for part, text in zip(parts, _parts(path, valid=valid, test=test), strict=True):
                part.append(text)
    return TextSplits(*("".join(part) for part in parts))


def _parts(path: Path, *, valid: float, test: float) -> TextSplits:
    paragraphs = _BETWEEN_PARAGRAPHS.split(read_text(path, encoding="latin-1").strip())
    lines = [" ".join(split_words(paragraph)) for paragraph in paragraphs]
    text = "".join(f"{line}\n" for line in lines if line)
    if not text:
        raise TaskError(f"{path} holds no text", hint="take another copy of it")
    cut = split_text(text, valid=valid, test=test)
    # A part begins with a new paragraph: what was cut off goes to the part before.
    train, valid_part, test_part = cut
    for_valid = valid_part.find("\n") + 1
    train, valid_part = train + valid_part[:for_valid], valid_part[for_valid:]
    for_test = test_part.find("\n") + 1
    valid_part, test_part = valid_part + test_part[:for_test], test_part[for_test:]
    return TextSplits(train, valid_part, test_part)
