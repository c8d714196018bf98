"""Lenses on the Hugging Face hub: fetched and shared by name."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from saccade.errors import LensError, StoreError
from saccade.lenses.collection import Made, read_made

TIMEOUT = 5.0  # seconds to wait for the hub to answer at all; a download then takes what it takes
FILES = ["manifest.json", "*.safetensors"]


def fetch_lenses(name: str) -> Path:
    """The folder of the hub's lenses of this name, downloaded unless it is in the hub's cache.

    Without a network, what was fetched before is used.

    Raises:
        LensError: there are no such lenses, or the hub cannot be reached.
    """
    try:
        HfApi().model_info(name, timeout=TIMEOUT)
    except (HFValidationError, RepositoryNotFoundError, GatedRepoError) as error:
        raise _refused(name, error) from error
    except HfHubHTTPError as error:
        first = str(error).splitlines()[0]
        raise LensError(
            f"the Hugging Face hub refused {name}: {first}", hint="try again later"
        ) from error
    except Exception as error:  # the hub's HTTP library has its own errors, and has changed before
        if (cached := _cached(name)) is not None:
            return cached
        raise LensError(
            f"{name} is neither a folder nor in the local cache, and the Hugging Face hub cannot "
            f"be reached ({type(error).__name__})",
            hint="check the network, or fit lenses with `saccade lens fit`",
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=FILES, etag_timeout=TIMEOUT))
    except Exception as error:
        raise LensError(
            f"the download of {name} broke off ({type(error).__name__})",
            hint="run the command again: what has arrived is kept",
        ) from error


def push_lenses(path: str | Path, name: str, *, private: bool = False) -> str:
    """Put a folder of lenses on the hub under ``user/name``; the address it then has.

    Raises:
        LensError: the folder holds no lenses, or the hub does not take them.
    """
    try:
        made = read_made(path)
    except StoreError as error:
        raise LensError(str(error), hint=error.hint) from error
    api = HfApi()
    try:
        url = api.create_repo(name, private=private, exist_ok=True)
        api.upload_file(
            path_or_fileobj=_card(made, name).encode(), path_in_repo="README.md", repo_id=name
        )
        api.upload_folder(folder_path=str(path), repo_id=name, allow_patterns=FILES)
    except HFValidationError as error:
        raise _refused(name, error) from error
    except HfHubHTTPError as error:
        first = str(error).splitlines()[0]
        raise LensError(
            f"the Hugging Face hub did not take {name}: {first}",
            hint="log in with `hf auth login`, and use a name of your own: user/name",
        ) from error
    except Exception as error:
        raise LensError(
            f"the Hugging Face hub cannot be reached ({type(error).__name__})",
            hint="check the network; the folder itself can be copied as it is",
        ) from error
    return str(url)


def _cached(name: str) -> Path | None:
    try:
        return Path(snapshot_download(name, allow_patterns=FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _refused(name: str, error: Exception) -> LensError:
    if isinstance(error, HFValidationError):
        return LensError(
            f"{name!r} is neither a folder nor a hub name", hint="hub names are user/name"
        )
    if isinstance(error, GatedRepoError):
        return LensError(
            f"the hub wants you to accept the terms of {name} first",
            hint="accept them on its page, then log in with `hf auth login`",
        )
    return LensError(
        f"no lenses named {name!r}: neither a folder nor on the Hugging Face hub (or private)",
        hint="check the spelling, or fit lenses with `saccade lens fit`",
    )


def _card(made: Made, name: str) -> str:
    return (
        f"---\nlibrary_name: saccade\ntags: [saccade, attention-lens]\n---\n# {name}\n\n"
        f"Lenses ({made.kind}, {made.method}) for the attention heads of {made.model}, fitted on "
        f"{made.n_tokens:,} tokens of {made.corpus}.\n\n"
        f'```\nsaccade read "The Eiffel Tower is located in" --lens {name}\n```\n'
    )
