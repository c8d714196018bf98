"""Atomic writes of files and folders: they appear complete or not at all.

Everything is prepared in a hidden folder next to its target (``.1f2e3d4c.partial``) and replaces
the target when it is complete, so that a full disk, Ctrl-C, or a killed process leaves the old
version. The hidden folder is locked while its process lives; the next write in the same place
removes those without a lock. Two processes that write the same target both succeed: the last one
wins.
"""

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum, auto
from functools import cache
from pathlib import Path

import platformdirs

from saccade.errors import StoreError

# Locations: the cache, and the data sets of the user.


def cache_dir() -> Path:
    """The cache folder: ``$SACCADE_CACHE``, or else the cache location of the system.

    It is not created here; the code that writes into it does that.

    >>> import os
    >>> os.environ["SACCADE_CACHE"] = "/somewhere/else"
    >>> cache_dir().as_posix()
    '/somewhere/else'
    >>> del os.environ["SACCADE_CACHE"]
    """
    chosen = os.environ.get("SACCADE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(platformdirs.user_cache_dir("saccade", appauthor=False))


def data_dir() -> Path | None:
    """The folder with data sets, ``$SACCADE_DATA``, or None when the user has not named one."""
    chosen = os.environ.get("SACCADE_DATA")
    return Path(chosen).expanduser() if chosen else None


# Locks between processes, which the system releases when their holder ends, even by kill -9.
#
# The lock belongs to a file (``flock``): nothing has to be cleaned up after a crash, and it works
# between containers, where a process id has no meaning. Process ids and file ages only guess
# whether the owner of a file is still alive; a lock is certain.
#
# A lock file may be removed by its holder. A process that waited for it then holds the lock of a
# file that no longer has a name; this is detected here, and the lock is acquired again by name.


class Hold(Enum):
    """Who holds a lock."""

    MINE = auto()
    TAKEN = auto()
    """Another holder."""
    UNKNOWN = auto()
    """Unknown: this file system has no locks."""


# Errors of flock where it is not implemented (some network file systems).
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF, errno.EINVAL}


@contextmanager
def locked(file: Path, *, wait: bool = False) -> Iterator[Hold]:
    """Hold the lock of a file, created if it does not exist, while the block runs.

    The yielded value says whether the lock was acquired; with ``wait`` it is never TAKEN. A second
    lock on the same file in the same process counts as another holder's.

    Raises:
        OSError: the file cannot be created.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with locked(Path(folder) / "lock") as first, locked(Path(folder) / "lock") as second:
    ...         print(first.name, second.name)
    ...     with locked(Path(folder) / "lock") as third:
    ...         print(third.name)
    MINE TAKEN
    MINE
    """
    descriptor, hold = _acquire(file, wait=wait)
    try:
        yield hold
    finally:
        if hold is Hold.MINE:
            # A forked child may still have the descriptor open: closing ours would not be enough.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _acquire(file: Path, *, wait: bool) -> tuple[int, Hold]:
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            hold = _flock(descriptor, wait=wait)
            if hold is not Hold.MINE or _is_at(descriptor, file):
                return descriptor, hold
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the holder before us removed the file


def _flock(descriptor: int, *, wait: bool) -> Hold:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return Hold.TAKEN
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return Hold.UNKNOWN
        raise
    return Hold.MINE


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


_OTHER = "choose another location; SACCADE_CACHE sets the location of saccade's own cache"
# Errors of the disk or of permissions, with a hint for each. Any other OSError inside a
# `with` body belongs to the body (a missing source file, for example) and passes unchanged.
_REFUSALS = {
    errno.ENOSPC: "free some space, or choose a location on another disk",
    errno.EDQUOT: "your quota is used up: free some space, or choose a location on another disk",
    errno.EFBIG: "the file would be larger than is allowed here: choose another location",
    errno.EROFS: f"this location is read-only: {_OTHER}",
    errno.EACCES: f"you have no write permission there: ask for it, or {_OTHER}",
    errno.EPERM: f"you have no write permission there: ask for it, or {_OTHER}",
    errno.ENAMETOOLONG: "choose a shorter name",
}
# The same for errors of the location itself, which do not occur within a body.
_MISPLACED = {
    errno.EEXIST: f"a file exists where a folder is needed: {_OTHER}",
    errno.ENOTDIR: f"a file exists where a folder is needed: {_OTHER}",
    errno.EISDIR: "a folder exists where the file is needed: choose another name",
}

_LOCK = "lock"
_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.partial")
# Names of older versions, without locks: `.lens.1f2e3d4c.partial`, with the target's suffix.
_UNLOCKED = re.compile(r"\..+\.[0-9a-f]{8}\.partial(\..+)?")
# Where there are no locks, a leftover of this age is assumed to have no process.
_LEFTOVER_SECONDS = 24 * 3600
_ATTEMPTS = 100


def write_refused(path: str | Path, error: OSError) -> StoreError:
    """The error to raise when ``path`` could not be written because of ``error``.

    >>> refused = write_refused("x.json", OSError(28, "No space left on device"))
    >>> print(refused)
    could not write x.json: no space left on device (errno 28, ENOSPC)
    >>> refused.hint
    'free some space, or choose a location on another disk'
    """
    number = error.errno or 0
    name = errno.errorcode.get(number, type(error).__name__)
    reason = (error.strerror or str(error)).lower()
    return StoreError(
        f"could not write {path}: {reason} (errno {number}, {name})",
        hint=(_REFUSALS | _MISPLACED).get(
            number, "check that the location exists and is writable"
        ),
    )


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path`` that becomes ``path`` when the block succeeds.

    The temporary file has the same name, because writers choose a format by it. On any failure,
    Ctrl-C included, the temporary file is removed and an existing ``path`` is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "note.txt"
    ...     with atomic_file(target) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     target.read_text(), len(os.listdir(folder))
    ('whole', 1)
    """
    with _beside(path, kind=stat.S_ISREG) as (temporary, target):
        with _refusals_named(path, every=False):
            yield temporary
        with _refusals_named(path, every=True):
            _to_disk(temporary)
            os.replace(temporary, target)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder next to ``path`` that replaces ``path`` when the block succeeds.

    An existing folder is replaced as a whole. Linux exchanges two folders in one step, so that a
    reader finds the old one or the new one. Where the file system cannot do that, the old folder is
    first renamed; a process killed between the two renames leaves it under its temporary name,
    where `settled_folder` (and so every reader) finds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "lens"
    ...     for text in ("old", "new"):
    ...         with atomic_folder(target) as temporary:
    ...             _ = (temporary / "note.txt").write_text(text)
    ...     (target / "note.txt").read_text(), os.listdir(folder)
    ('new', ['lens'])
    """
    with _beside(path, kind=stat.S_ISDIR) as (temporary, target):
        with _refusals_named(path, every=True):
            temporary.mkdir()
        with _refusals_named(path, every=False):
            yield temporary
        with _refusals_named(path, every=True):
            for file in temporary.rglob("*"):
                if file.is_file():
                    _to_disk(file)
            _swap_in(temporary, target)


@contextmanager
def writing_alone(path: str | Path) -> Iterator[None]:
    """Wait until no other process is in such a block for the same path.

    For files that are written once and then only read: a process that waited finds them complete.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing_alone(f"{folder}/model"):
    ...         during = os.listdir(folder)
    ...     during, os.listdir(folder)
    (['.model.writing'], [])
    """
    target = Path(os.path.realpath(path))
    lock = target.parent / f".{target.name}.writing"
    with ExitStack() as stack:
        with _refusals_named(path, every=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(lock, wait=True))
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def settled_folder(path: str | Path) -> Path:
    """The location to read the folder ``path`` from.

    That is ``path`` itself, or, when a process died while replacing it, the old folder under its
    temporary name. Nothing is renamed here: a writer may still be running.
    """
    target = Path(os.path.realpath(path))
    aside = _aside(target)
    return aside if os.path.isdir(aside) and not os.path.exists(target) else Path(path)


def is_temporary(path: str | Path) -> bool:
    """Whether this name belongs to an unfinished write, or to the leftover of a killed one.

    >>> is_temporary("runs/.1f2e3d4c.partial"), is_temporary("runs/000000006.safetensors")
    (True, False)
    """
    name = os.path.basename(path)
    return bool(_TEMPORARY.fullmatch(name) or _UNLOCKED.fullmatch(name))


@contextmanager
def _beside(path: str | Path, *, kind: Callable[[int], bool]) -> Iterator[tuple[Path, Path]]:
    """Yield where to prepare ``path``, and the target to replace with links resolved.

    Everything left in the hidden folder when the block ends, the old target included, is removed.
    """
    target = Path(os.path.realpath(path))
    if not target.name:
        raise StoreError(
            f"could not write {path}: expected a name, found the root of the disk",
            hint="choose a file or a folder below it",
        )
    with ExitStack() as stack:
        with _refusals_named(path, every=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            _refuse_other_kinds(path, target, kind)
            _sweep(target.parent)
            hidden = _new_hidden(target.parent, stack)
        try:
            yield hidden / target.name, target
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def _refuse_other_kinds(path: str | Path, target: Path, kind: Callable[[int], bool]) -> None:
    """Refuse to replace a folder or a device by a file, or a file by a folder."""
    try:
        found = os.stat(target).st_mode
    except FileNotFoundError:
        return
    if not kind(found):
        expected = "folder" if kind is stat.S_ISDIR else "file"
        known = {stat.S_ISREG: "file", stat.S_ISDIR: "folder"}
        what = next((name for is_kind, name in known.items() if is_kind(found)), "device or pipe")
        raise StoreError(
            f"could not write {path}: expected a {expected} or nothing there, found a {what}",
            hint=f"choose another name, or move the {what} away",
        )


def _new_hidden(parent: Path, stack: ExitStack) -> Path:
    """A new hidden folder, locked until the stack ends."""
    for _ in range(_ATTEMPTS):
        hidden = parent / f".{secrets.token_hex(4)}.partial"
        hidden.mkdir()
        # Before it is locked, another process may remove it as a leftover.
        with suppress(FileNotFoundError):
            if stack.enter_context(locked(hidden / _LOCK)) is not Hold.TAKEN:
                return hidden
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _sweep(folder: Path) -> None:
    """Remove the leftovers of killed processes, for any target."""
    with suppress(OSError):
        for path in [each for each in folder.iterdir() if is_temporary(each)]:
            with suppress(OSError):
                _remove_leftover(path)


def _remove_leftover(path: Path) -> None:
    is_old = time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS
    if not _TEMPORARY.fullmatch(path.name):
        if is_old:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return
    with locked(path / _LOCK) as hold:
        if hold is Hold.MINE or (hold is Hold.UNKNOWN and is_old):
            shutil.rmtree(path, ignore_errors=True)


def _swap_in(new: Path, target: Path) -> None:
    """Replace a folder by another; the old one ends up at the path of the new one, or removed."""
    for _ in range(_ATTEMPTS):
        if target.exists() and not target.is_dir():  # written there while the folder was prepared
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        try:
            if not _exchange(new, target):
                _swap_in_two_steps(new, target)
                return
        except FileNotFoundError:
            try:
                os.rename(new, target)  # the first of its name
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                continue  # another process was first: replace what it wrote
        shutil.rmtree(_aside(target), ignore_errors=True)
        return
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _swap_in_two_steps(new: Path, target: Path) -> None:
    """The same where folders cannot be exchanged: one process at a time, using a third name."""
    aside, lock = _aside(target), target.parent / f".{target.name}.lock"
    with locked(lock, wait=True):
        try:
            if aside.exists() and not target.exists():  # a process died between the two renames
                os.rename(aside, target)
            shutil.rmtree(aside, ignore_errors=True)  # a process died after the second one
            if target.exists():
                os.rename(target, aside)
            os.rename(new, target)
            shutil.rmtree(aside, ignore_errors=True)
        except BaseException:
            if aside.exists() and not target.exists():
                os.rename(aside, target)
            raise
        finally:
            lock.unlink(missing_ok=True)  # last: after this another process may start


_AT_CWD, _RENAME_EXCHANGE = -100, 2  # of linux/fcntl.h and linux/fs.h
# Errors of renameat2 where the kernel, a sandbox or the file system does not know the flag.
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP}


@cache
def _renameat2() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where that cannot be done."""
    renameat2 = _renameat2()
    if renameat2 is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if renameat2(_AT_CWD, paths[0], _AT_CWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number))


def _aside(target: Path) -> Path:
    return target.parent / f".{target.name}.old"


def _to_disk(file: Path) -> None:
    """Flush the contents to the disk: otherwise a power failure can leave an empty file."""
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
