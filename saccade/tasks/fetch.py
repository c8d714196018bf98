"""Finds data sets on this machine, and fetches those that can be had, checked by their hash."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from saccade.errors import TaskError, UsageError
from saccade.store import cache_dir, data_dir
from saccade.tasks.data_sets import DATA_SETS, DataFile, DataSet

# Seconds to connect, and between two pieces of an answer: without a network this is told at once.
_TIMEOUT = (5.0, 30.0)

Progress = Callable[[str, int, int], None]
"""Called with what is being fetched, the files done, and how many there are."""


class Listed(NamedTuple):
    """A data set, and where it is on this machine."""

    data_set: DataSet
    where: Path | None


def known_data_set(name: str) -> DataSet:
    """The data set of a name."""
    if name in DATA_SETS:
        return DATA_SETS[name]
    near = difflib.get_close_matches(name, DATA_SETS, n=1)
    raise UsageError(
        f"no data set named {name!r}",
        hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(DATA_SETS)}",
    )


def list_data(data: str | Path | None = None) -> list[Listed]:
    """Every known data set, and where it was found."""
    return [Listed(each, _look(each, data)) for each in DATA_SETS.values()]


def find_data(name: str, data: str | Path | None = None) -> Path:
    """The folder with the files of a data set.

    Looked for in ``data`` (the user's ``--data``), then in ``$SACCADE_DATA``, then where
    `fetch_data` puts things; in each in the data set's own folder, then in the place itself.
    """
    data_set = known_data_set(name)
    found = _look(data_set, data)
    if found is None:
        looked = ", ".join(str(place) for place in _places(data))
        way = f"`saccade data fetch {name}`" if data_set.can_be_fetched else data_set.source
        raise TaskError(
            f"the data set {name} is not there: looked in {looked}",
            hint=f"{way}, or name the folder that holds it with --data or SACCADE_DATA",
        )
    return found


def fetch_data(name: str, *, progress: Progress | None = None) -> Path:
    """Fetch a data set into the cache, check it, and return its folder.

    Files that are there already, and whole, are not fetched again.
    """
    data_set = known_data_set(name)
    if not data_set.can_be_fetched:
        raise TaskError(
            f"{name} cannot be fetched: no place is known that gives it to everybody",
            hint=f"see {data_set.source}, and name the folder that holds it with --data",
        )
    folder = fetched_dir() / data_set.folder
    for done, file in enumerate(data_set.files):
        if progress:
            progress(f"fetching {file.name}", done, len(data_set.files))
        _fetch(file, folder)
    if progress:
        progress(f"fetched {name}", len(data_set.files), len(data_set.files))
    return folder


def fetched_dir() -> Path:
    """The folder that holds what was fetched."""
    return cache_dir() / "data"


def _places(data: str | Path | None) -> list[Path]:
    chosen = Path(data).expanduser() if data is not None else None
    if chosen is not None and not chosen.is_dir():
        raise UsageError(f"no such folder: {chosen}", hint="check what --data names")
    return [place for place in (chosen, data_dir(), fetched_dir()) if place is not None]


def _look(data_set: DataSet, data: str | Path | None) -> Path | None:
    folders = [f for place in _places(data) for f in (place / data_set.folder, place)]
    return next((each for each in folders if _holds(each, data_set)), None)


def _holds(folder: Path, data_set: DataSet) -> bool:
    """One file is enough: nobody needs all languages. A missing one is named when it is read."""
    names = [file.name for file in data_set.files]
    # Both forms are read, whichever is published.
    twins = [n.removesuffix(".gz") if n.endswith(".gz") else f"{n}.gz" for n in names]
    return any((folder / each).is_file() for each in (*names, *twins))


def _fetch(file: DataFile, folder: Path) -> None:
    # Takes a third of a second to import, for something that is done once.
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")  # it tells of every file; that is the caller's affair
    host = file.url.split("/")[2]
    try:
        pooch.retrieve(
            url=file.url,
            known_hash=file.hash,
            fname=file.name,
            path=folder,
            # pooch names the parameters of its own class and its own protocol differently.
            downloader=pooch.HTTPDownloader(timeout=_TIMEOUT),  # pyright: ignore[reportArgumentType]
        )
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        raise TaskError(
            f"could not fetch {file.name}: {host} answered {status}",
            hint="try later, or name a folder that holds the file with --data",
        ) from error
    except requests.RequestException as error:
        raise TaskError(
            f"could not fetch {file.name}: {host} cannot be reached ({type(error).__name__})",
            hint="check the network, or name a folder that holds the file with --data",
        ) from error
    except ValueError as error:  # what pooch says of a wrong hash; the file is removed
        raise TaskError(
            f"could not fetch {file.name}: what {host} gave is not the file that was expected "
            f"({file.hash[:23]}...)",
            hint="try again; if it stays so, its makers have changed it",
        ) from error
    except OSError as error:
        raise TaskError(
            f"could not write {folder / file.name}: {error.strerror or error}",
            hint="free some space, or choose another place with SACCADE_CACHE",
        ) from error
