"""Lenses on the Hugging Face hub: download and upload by name."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from saccade.errors import LensError, StoreError
from saccade.interp.lenses.lens_set import Provenance, read_provenance
from saccade.store.atomic import settled_folder
from saccade.store.folder import read_folder

TIMEOUT = 5.0  # seconds to wait for the hub to answer; the download itself has no limit
MANIFEST = "manifest.json"
FILES = [MANIFEST, "*.safetensors"]
# A model or a data set on the hub: `user/name`, for data sets also `user/name:config:split`.
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w.-]*){0,2}")
_FILE = re.compile(r".*\.(txt|jsonl?|gz|csv|md|parquet|zip)", re.IGNORECASE)


def fetch_lenses(name: str) -> Path:
    """The folder of the hub's lenses with this name, downloaded unless the hub's cache has it.

    Without a network, the cached copy is used.

    Raises:
        LensError: no lenses have this name, or the hub cannot be reached.
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
            f"the download of {name} was interrupted ({type(error).__name__})",
            hint="run the command again: what was downloaded is kept",
        ) from error


def push_lenses(path: str | Path, name: str, *, private: bool = False) -> str:
    """Upload a folder of lenses to the hub as ``user/name``; returns its address.

    All files go in one commit. Local paths in the manifest are shortened to their last part.

    Raises:
        LensError: the folder contains no lenses, or the hub rejects them.
    """
    try:
        provenance = read_provenance(path)
        manifest = _public(read_folder(path).manifest)
    except StoreError as error:
        raise LensError(str(error), hint=error.hint) from error
    api = HfApi()
    try:
        url = api.create_repo(name, private=private, exist_ok=True)
        files = {
            "README.md": _card(provenance, name).encode(),
            MANIFEST: json.dumps(manifest, indent=2, ensure_ascii=False).encode(),
            **{file: str(settled_folder(path) / file) for file in manifest["files"]},
        }
        added = [CommitOperationAdd(file, content) for file, content in files.items()]
        api.create_commit(name, added, commit_message=f"Lenses for {public_name(provenance.model)}")
    except HFValidationError as error:
        raise _refused(name, error) from error
    except HfHubHTTPError as error:
        first = str(error).splitlines()[0]
        raise LensError(
            f"the Hugging Face hub rejected {name}: {first}",
            hint="log in with `hf auth login`, and use your own user name: user/name",
        ) from error
    except Exception as error:
        raise LensError(
            f"the Hugging Face hub cannot be reached ({type(error).__name__})",
            hint="check the network; the folder can also be copied as it is",
        ) from error
    return str(url)


def public_name(text: str) -> str:
    """A description without local paths: only the last part of each path is kept.

    >>> public_name("/home/me/secret/books.txt, roneneldan/TinyStories")
    'books.txt, roneneldan/TinyStories'
    """
    # Several texts are joined with commas, those of merged lenses with plus signs.
    parts = re.split(r"(, | \+ )", text)
    return "".join(part if _is_public(part) else _last_part(part) for part in parts)


def _is_public(name: str) -> bool:
    if not re.search(r"[/\\~]", name):
        return True
    is_hub_name = _HUB_NAME.fullmatch(name) and not _FILE.fullmatch(name)
    return bool(is_hub_name) and not os.path.exists(name)


def _last_part(path: str) -> str:
    return (re.findall(r"[^/\\]+", path) or [""])[-1].lstrip("~.") or "local"


def _public(value: Any) -> Any:
    """A manifest with `public_name` applied to all strings."""
    if isinstance(value, dict):
        return {key: _public(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_public(each) for each in value]
    return public_name(value) if isinstance(value, str) else value


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
            f"the hub asks you to accept the terms of {name} first",
            hint="accept them on its page, then log in with `hf auth login`",
        )
    return LensError(
        f"no lenses named {name!r}: neither a folder nor on the Hugging Face hub (or private)",
        hint="check the spelling, or fit lenses with `saccade lens fit`",
    )


def _card(provenance: Provenance, name: str) -> str:
    provenance = replace(
        provenance, model=public_name(provenance.model), corpus=public_name(provenance.corpus)
    )
    return (
        f"---\nlibrary_name: saccade\ntags: [saccade, attention-lens]\n---\n# {name}\n\n"
        f"Lenses ({provenance.kind}, {provenance.method}) for the attention heads of "
        f"{provenance.model}, fitted on {provenance.n_tokens:,} tokens of {provenance.corpus}.\n\n"
        f'```\nsaccade read "The Eiffel Tower is located in" --lens {name}\n```\n'
    )
