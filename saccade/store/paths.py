"""Where things are kept: the user's cache, and the data sets the user points to."""

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The folder for what can be made again: ``$SACCADE_CACHE``, else the system's own cache place.

    It is not created here; whoever writes into it does that.

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
