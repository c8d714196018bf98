"""Text that a command is given on stdin or in a file: UTF-8, and read without waiting for ever.

What is piped into a command comes from anywhere: another program's binary output, a file in
another encoding, a pipe that nobody writes to. Each is refused in one line here, so that no command
has to think of it.
"""

from __future__ import annotations

import codecs
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from saccade.errors import UsageError

STDIN = "-"
MOST_PROMPT = 1 << 20
"""Bytes of one prompt: more than any model reads at once, and tokenized in seconds."""
MOST_BYTES = 1 << 26
"""Bytes of many prompts; text to fit on is read by `saccade.interp.lenses.corpus`, in pieces."""


def read_text(source: str, *, what: str, most: int = MOST_PROMPT) -> str:
    """The whole text of a file, or of stdin for "-".

    Args:
        what: names the text in a message: "prompts", "the question".
        most: how many bytes it may have.

    Raises:
        UsageError: it cannot be read, is no UTF-8 text, or is larger than any prompt.
    """
    if source == STDIN:
        content = _stdin_bytes(most)
    else:
        try:
            content = _file_bytes(Path(source).expanduser(), most)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(
                f"cannot read {what} from {source}: {reason}",
                hint="give a text file, or - for stdin",
            ) from error
    where = "stdin" if source == STDIN else source
    if len(content) > most:
        raise UsageError(
            f"cannot read {what} from {where}: expected at most {most >> 20} MB, found more",
            hint="give a part of it",
        )
    return _decoded(content.removeprefix(codecs.BOM_UTF8), f"{what} from {where}")


def stdin_lines() -> Iterator[str]:
    """The lines of stdin, each as soon as it is there.

    Raises:
        UsageError: a line is no UTF-8 text.
    """
    if not hasattr(sys.stdin, "buffer"):  # replaced by another program, or in a notebook
        yield from sys.stdin
        return
    for number, line in enumerate(iter(lambda: sys.stdin.buffer.readline(MOST_PROMPT), b""), 1):
        start = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if len(line) == MOST_PROMPT:
            raise UsageError(
                f"line {number} of stdin: expected at most {MOST_PROMPT >> 20} MB, found more",
                hint="give one prompt a line",
            )
        yield _decoded(start, f"line {number} of stdin")


def _decoded(content: bytes, what: str) -> str:
    if (nul := content.find(b"\0")) >= 0:
        raise _no_text(what, f"a NUL byte at byte {nul}")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte 0x{content[error.start]:02x} ({error.reason}) at byte {error.start}"
        raise _no_text(what, reason) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _no_text(what: str, found: str) -> UsageError:
    return UsageError(
        f"cannot read {what}: expected UTF-8 text, found {found}",
        hint="convert it, for example with `iconv -t utf-8`",
    )


def _stdin_bytes(most: int) -> bytes:
    if sys.stdin is None:  # started without one
        return b""
    if not hasattr(sys.stdin, "buffer"):
        return sys.stdin.read().encode("utf-8", "surrogatepass")
    return sys.stdin.buffer.read(most + 1)


def _file_bytes(path: Path, most: int) -> bytes:
    """The content of a file, or of a pipe that has a writer, as the shell's <(...) has one."""
    # Without O_NONBLOCK, opening a pipe waits until somebody opens its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        start = b""
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            first = file.read(1)  # None where there is a writer that has not written yet
            if first == b"":
                raise ValueError("it is a pipe that nothing writes to")
            start = first or b""
        elif not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is a folder or a device, not a file")
        os.set_blocking(descriptor, True)
        parts = [start]
        while sum(map(len, parts)) <= most and (part := file.read(1 << 20)):
            parts.append(part)
        return b"".join(parts)
