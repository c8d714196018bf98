"""From a source to documents: files, folders and datasets, each a stream of blocks of text."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import ssl
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from saccade.errors import CorpusError, MissingPackageError

SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz")
BLOCK = 1 << 15  # characters read at once
_DATASET = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(:[\w.-]*){0,2}")
_FILE_LIKE = (".txt", ".jsonl", ".gz", ".json", ".csv", ".parquet", ".md", ".zip")
_TIMEOUT = 5.0  # seconds until the hub counts as unreachable


def resolve(source: str | Path) -> list[str | Path]:
    """The files of a source, or the name of a dataset."""
    if source == "":  # pathlib reads this as the current folder
        raise CorpusError("no such file: ''", hint="give the path of a text file")
    path = Path(source).expanduser()
    with _reading(path):
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
            if not files:
                raise CorpusError(
                    f"the folder {path} has no file that ends in {', '.join(SUFFIXES)}",
                    hint="give a folder that contains text files",
                )
            for file in files:
                _refuse_irregular(file)
            return [*files]
        if path.exists():
            _refuse_irregular(path)
            if not path.name.endswith(SUFFIXES):
                raise CorpusError(
                    f"unsupported file type: {path}",
                    hint=f"supported: {', '.join(SUFFIXES)}",
                )
            return [path]
    if isinstance(source, str) and _is_dataset_name(source):
        return [source]
    raise CorpusError(f"no such file: {path}", hint="check the path")


def _refuse_irregular(path: Path) -> None:
    """Refuse pipes and devices: opening a pipe can block for ever, and a device may not end."""
    if not path.is_file():
        raise CorpusError(
            f"expected a text file, got {path}, which is a pipe, a device or a folder",
            hint="write the text to a file first",
        )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CorpusError(
            f"{path} is a broken gzip file: {error}", hint="download or compress it again"
        ) from error
    except OSError as error:
        raise CorpusError(
            f"could not read {path}: {error.strerror or error}", hint="check its permissions"
        ) from error


def _is_dataset_name(source: str) -> bool:
    return bool(_DATASET.fullmatch(source)) and not source.lower().endswith(_FILE_LIKE)


def documents(source: str | Path) -> Iterator[Iterator[str]]:
    """The documents of a file or dataset that `resolve` found, each in blocks."""
    if isinstance(source, str):
        yield from _dataset_documents(source)
    elif source.name.endswith((".jsonl", ".jsonl.gz")):
        yield from _jsonl_documents(source)
    else:
        yield _decoded(source, _raw(source))


def _raw(path: Path, *, by_line: bool = False) -> Iterator[bytes]:
    with _reading(path), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        yield from file if by_line else iter(lambda: file.read(BLOCK), b"")


def _decoded(path: Path, blocks: Iterable[bytes]) -> Iterator[str]:
    """UTF-8 text, without a byte order mark and with Unix line ends."""
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    read = 0
    for block in chain(blocks, [b""]):
        if (nul := block.find(b"\0")) >= 0:
            raise _binary(path, "a NUL byte", read + nul)
        read += len(block)
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            # The decoder buffers the start of an incomplete character, so count from the end.
            at = read - len(error.object) + error.start
            raise _binary(path, f"invalid UTF-8 ({error.reason})", at) from error


def _binary(path: Path, what: str, at: int) -> CorpusError:
    return CorpusError(
        f"{path} is not text: {what} at byte {at}", hint="give text encoded as UTF-8"
    )


def _jsonl_documents(path: Path) -> Iterator[Iterator[str]]:
    for number, line in enumerate(_raw(path, by_line=True), start=1):
        try:
            text = "".join(_decoded(path, [line]))
        except CorpusError as error:
            raise CorpusError(f"{error} of line {number}", hint=error.hint) from error
        if text.strip():
            yield _blocks(_text_of(_row(path, number, text), f"{path} line {number}"))


def _row(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, or thousands of digits or brackets
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        if isinstance(error, json.JSONDecodeError):
            reason = f"{error.msg} at column {error.colno}"
        raise CorpusError(
            f"{path} line {number} is not valid JSON: {reason}",
            hint='each line must be an object such as {"text": "..."}',
        ) from error


def _text_of(row: Any, where: str) -> str:
    fields = row if isinstance(row, dict) else {}
    strings = [value for value in fields.values() if isinstance(value, str)]
    if isinstance(text := fields.get("text"), str):
        strings = [text]
    if len(strings) != 1:
        raise CorpusError(
            f"{where} has no text: no field 'text', and {len(strings)} string fields",
            hint='each row must have a field "text", or a single field that is a string',
        )
    # JSON can encode lone surrogates, which no tokenizer accepts.
    return strings[0].encode("utf-8", "replace").decode("utf-8")


def _blocks(text: str) -> Iterator[str]:
    return (text[at : at + BLOCK] for at in range(0, len(text), BLOCK))


def _dataset_documents(source: str) -> Iterator[Iterator[str]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingPackageError(
            f"{source} is not a local file, and reading it as a Hugging Face dataset needs "
            "the package 'datasets'",
            hint="pip install datasets",
        ) from error
    name, config, part = (*source.split(":"), "", "")[:3]
    _check_hub(name)
    try:
        # Streaming downloads only what is read. Versions before 4 would ask on stdin
        # whether to run a dataset's script; later ones refuse scripts with a RuntimeError.
        rows = load_dataset(
            name,
            config or None,
            split=part or "train",
            streaming=True,
            trust_remote_code=False,
        )
    except (ValueError, OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CorpusError(
            f"could not open the dataset {source}: {reason}",
            hint="name it as name, name:config or name:config:split",
        ) from error
    for number, row in enumerate(rows, start=1):
        yield _blocks(_text_of(row, f"{source} row {number}"))


def _check_hub(name: str) -> None:
    """Check that the hub answers: without a network, `datasets` itself retries for minutes."""
    from huggingface_hub import constants

    try:
        urlopen(constants.ENDPOINT, timeout=_TIMEOUT).close()
    except HTTPError:
        pass  # it answered
    except OSError as error:
        # An unknown certificate is a problem of Python only; the hub's own client may accept it.
        if not isinstance(getattr(error, "reason", None), ssl.SSLError):
            raise CorpusError(
                f"no file named {name}, and no network to look for a Hugging Face dataset",
                hint="check the path or the network",
            ) from error
