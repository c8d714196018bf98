"""Books as running text: Project Gutenberg and Shakespeare's plays, from plain or packed files."""

from __future__ import annotations

import gzip
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from saccade.errors import TaskError
from saccade.zoo.tasks.datasets import GUTENBERG, find_data
from saccade.zoo.tasks.text import TextSplits, split_text, split_words

# Text from plain, gzip, zip and tar files; anything else raises a one-line error.

_BROKEN = (gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)


def read_text(path: Path, *, encoding: str = "utf-8") -> str:
    """The text of a file or of its ``.gz`` version, with line feeds as line ends."""
    found = _found(path)
    with _reading(found), (gzip.open if found.suffix == ".gz" else open)(found, "rb") as file:
        return _decoded(file.read(), found, encoding)


def read_lines(path: Path) -> list[str]:
    """The lines of a file or of its ``.gz`` version.

    Lines end at line feeds only. Python's ``splitlines`` also cuts at rarer characters (U+2028,
    U+0085), which would break the alignment of two files.
    """
    lines = read_text(path).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def read_zip(path: Path, pattern: str) -> dict[str, str]:
    """The texts in a zip whose names match the pattern, by name and in its order."""
    with _reading(path), zipfile.ZipFile(_found(path)) as archive:
        # The metadata that macOS adds for each file is no text.
        names = [n for n in archive.namelist() if fnmatch(n, pattern) and "__MACOSX" not in n]
        texts = {name: _decoded(archive.read(name), f"{name} in {path}") for name in sorted(names)}
    return _not_empty(texts, path, pattern)


def read_tar(path: Path, pattern: str) -> dict[str, str]:
    """The texts in a tar, packed or not, whose names match the pattern, by name."""
    texts = {}
    with _reading(path), tarfile.open(_found(path)) as archive:
        for member in archive:
            if member.isfile() and fnmatch(member.name, pattern):
                held = archive.extractfile(member)
                assert held is not None, "a plain file can be read"
                texts[member.name] = _decoded(held.read(), f"{member.name} in {path}")
    return _not_empty(dict(sorted(texts.items())), path, pattern)


def _not_empty(texts: dict[str, str], path: Path, pattern: str) -> dict[str, str]:
    if not texts:
        raise TaskError(
            f"{path} holds no file named like {pattern}",
            hint="it may be another data set: fetch it again with `saccade data fetch`",
        )
    return texts


def _found(path: Path) -> Path:
    for each in (path, path.with_name(path.name + ".gz")):
        if each.is_file():
            return each
    what = "is a folder, not a file" if path.is_dir() else "no such file"
    raise TaskError(f"could not read {path}: {what}", hint="check the path")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    # zipfile raises RuntimeError for a file that needs a password.
    except (*_BROKEN, zlib.error, EOFError, RuntimeError) as error:
        why, *_ = str(error).splitlines() or [""]  # tarfile gives a line for each format it tried
        raise TaskError(
            f"{path} is a broken archive: {why.rstrip(':')}", hint="fetch it again"
        ) from error
    except OSError as error:
        raise TaskError(
            f"could not read {path}: {error.strerror or error}", hint="check its permissions"
        ) from error


def _decoded(data: bytes, where: str | Path, encoding: str = "utf-8") -> str:
    hint = f"give text encoded as {encoding.upper()}"
    if (nul := data.find(b"\0")) >= 0:
        raise TaskError(f"{where} is no text: a NUL byte at byte {nul}", hint=hint)
    try:
        text = data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{where} is no text: no {encoding.upper()} ({error.reason}) at byte {error.start}",
            hint=hint,
        ) from error
    return text.replace("\r\n", "\n")


# 16 books of Project Gutenberg, as NLTK collects them: running words for language models.

_BETWEEN_PARAGRAPHS = re.compile(r"\n\s*\n")


def read_gutenberg(
    data: str | Path | None = None, *, valid: float = 0.05, test: float = 0.1
) -> TextSplits:
    """One paragraph a line, words and punctuation marks between spaces (`split_words`).

    The last part of each book is for the test, the one before it for validation. Missing books are
    left out, so a folder with one book is enough.
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
    # A part begins with a new paragraph: the rest of a cut one goes to the part before.
    train, valid_part, test_part = cut
    for_valid = valid_part.find("\n") + 1
    train, valid_part = train + valid_part[:for_valid], valid_part[for_valid:]
    for_test = test_part.find("\n") + 1
    valid_part, test_part = valid_part + test_part[:for_test], test_part[for_test:]
    return TextSplits(train, valid_part, test_part)


def read_tinyshakespeare(
    data: str | Path | None = None, *, valid: float = 0.0, test: float = 0.1
) -> TextSplits:
    """The plays cut into parts, the last one for the test.

    Two splits are common: 90/10 (nanoGPT's, the default here; its last tenth is the test) and
    90/5/5 (char-rnn's: ``valid=0.05, test=0.05``). With ``valid=0.05, test=0.1`` validation uses
    text of its own, at the cost of a little training text.
    """
    text = read_text(find_data("tinyshakespeare", data) / "input.txt")
    return split_text(text, valid=valid, test=test)
