"""Files and folders that appear whole or not at all.

Everything is written under a hidden name beside its target and renamed when it is complete, so that
a full disk, Ctrl-C, or a killed process leaves what was there before.
"""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from saccade.errors import StoreError

# What the disk or its owner refuses, with what to do about it. Any other OSError inside a
# `with` body is the body's own affair (a source file that is missing, say) and passes unchanged.
_REFUSALS = {
    errno.ENOSPC: "free some space, or choose a place on another disk",
    errno.EDQUOT: "your quota is used up: free some space, or choose a place on another disk",
    errno.EFBIG: "the file would be larger than is allowed here: choose another place",
    errno.EROFS: "this place cannot be written to: choose another one",
    errno.EACCES: "you may not write there: choose another place, or ask for the permission",
    errno.EPERM: "you may not write there: choose another place, or ask for the permission",
}

# A hidden leftover of a killed process is removed by the next write to the same target once it is
# this old; younger ones may belong to a process that is still writing.
_LEFTOVER_SECONDS = 24 * 3600


def write_refused(path: str | Path, error: OSError) -> StoreError:
    """The error to raise when ``path`` could not be written because of ``error``.

    >>> refused = write_refused("x.json", OSError(28, "No space left on device"))
    >>> print(refused)
    could not write x.json: no space left on device (errno 28, ENOSPC)
    >>> refused.hint
    'free some space, or choose a place on another disk'
    """
    number = error.errno or 0
    name = errno.errorcode.get(number, type(error).__name__)
    reason = (error.strerror or str(error)).lower()
    return StoreError(
        f"could not write {path}: {reason} (errno {number}, {name})",
        hint=_REFUSALS.get(number, "check that the place exists and can be written to"),
    )


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that becomes ``path`` when the block succeeds.

    The temporary name keeps the suffix, because writers choose a format by it. On any failure,
    Ctrl-C included, the temporary file is removed and an existing ``path`` is as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "note.txt"
    ...     with atomic_file(target) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     target.read_text(), len(os.listdir(folder))
    ('whole', 1)
    """
    target = _prepared(path)
    temporary = target.with_name(_temporary_name(target))
    try:
        with _refusals_named(path, every=False):
            yield temporary
        with _refusals_named(path, every=True):
            _to_disk(temporary)
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path`` that replaces ``path`` when the block succeeds.

    An existing folder is replaced as a whole: moved aside, the new one renamed in, the old one
    removed. Two renames cannot be one step on every system; a process killed between them leaves
    the old folder under its aside name, where `settled_folder` (and so every reader) finds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "lens"
    ...     for text in ("old", "new"):
    ...         with atomic_folder(target) as temporary:
    ...             _ = (temporary / "note.txt").write_text(text)
    ...     (target / "note.txt").read_text(), os.listdir(folder)
    ('new', ['lens'])
    """
    target = _prepared(path)
    if target.exists() and not target.is_dir():
        raise StoreError(
            f"could not write {path}: expected a folder or nothing there, found a file",
            hint="choose another name, or move the file away",
        )
    temporary = target.with_name(_temporary_name(target))
    try:
        with _refusals_named(path, every=True):
            temporary.mkdir()
        with _refusals_named(path, every=False):
            yield temporary
        with _refusals_named(path, every=True):
            for file in temporary.rglob("*"):
                if file.is_file():
                    _to_disk(file)
            _swap_in(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def settled_folder(path: str | Path) -> Path:
    """Where the folder ``path`` is to be read from.

    That is ``path`` itself, or, when a process died in the middle of replacing it, the old folder
    under the name it was moved aside to. Nothing is renamed here: a writer may still be at work.
    """
    target = Path(os.path.realpath(path))
    aside = _aside(target)
    return aside if aside.is_dir() and not target.exists() else Path(path)


def _swap_in(temporary: Path, target: Path) -> None:
    aside = _aside(target)
    if aside.exists() and not target.exists():  # a process died between the two renames
        os.rename(aside, target)
    shutil.rmtree(aside, ignore_errors=True)  # a process died after the second one
    if not target.exists():
        os.rename(temporary, target)
        return
    try:
        os.rename(target, aside)
        os.rename(temporary, target)
    except BaseException:
        if aside.exists() and not target.exists():
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _temporary_name(target: Path) -> str:
    return f".{target.stem}.{secrets.token_hex(4)}.partial{target.suffix}"


def _prepared(path: str | Path) -> Path:
    """Resolve links, so that what they point to is replaced; make the parent; clear leftovers."""
    target = Path(os.path.realpath(path))
    with _refusals_named(path, every=True):
        target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        for leftover in [path for path in target.parent.iterdir() if _is_leftover(path, target)]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    return target


def _is_leftover(path: Path, target: Path) -> bool:
    start, end = f".{target.stem}.", f".partial{target.suffix}"
    token = path.name[len(start) : -len(end)]
    if path.name != f"{start}{token}{end}" or len(token) != 8 or not token.isalnum():
        return False
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS
    return False


def _to_disk(file: Path) -> None:
    """Wait until the contents are on the disk: otherwise a power cut can leave an empty file."""
    with open(file, "rb+") as handle:
        os.fsync(handle.fileno())


@contextmanager
def _refusals_named(path: str | Path, *, every: bool) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if every or error.errno in _REFUSALS:
            raise write_refused(path, error) from error
        raise
