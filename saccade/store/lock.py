"""Locks between processes, which the system releases when their holder ends, even by kill -9.

The lock belongs to a file, by ``flock``: nothing has to be cleaned up after a crash, and processes
in other containers are seen where a process id would mean nothing. Process ids and ages of files
only guess whether the owner of a file is still alive; a lock knows.

A lock file may be removed by its holder. Whoever waited for it then holds the lock of a file that
has no name any more; that is noticed here, and the lock is taken anew under the name.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path


class Hold(Enum):
    """Who holds a lock."""

    MINE = auto()
    TAKEN = auto()
    """Somebody else."""
    UNKNOWN = auto()
    """Nobody can tell: this file system has no locks."""


# What flock says where it is not implemented (some network file systems).
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF, errno.EINVAL}


@contextmanager
def locked(file: Path, *, wait: bool = False) -> Iterator[Hold]:
    """Hold the lock of a file, which is made if need be, while the block runs.

    The yielded value says whether the lock was obtained; with ``wait`` it is never TAKEN. A second
    lock on the same file in the same process counts as somebody else's.

    Raises:
        OSError: the file cannot be made.

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
