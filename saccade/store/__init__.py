"""What is kept on disk: safetensors and JSON, written atomically, named by fingerprints."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.store.atomic import atomic_file, atomic_folder, is_temporary, settled_folder
    from saccade.store.fingerprint import (
        fingerprint_model,
        fingerprint_text,
        fingerprint_tokenizer,
    )
    from saccade.store.folder import (
        Folder,
        amend_manifest,
        read_folder,
        read_manifest,
        read_tensors,
        write_folder,
    )
    from saccade.store.lock import Hold, locked
    from saccade.store.places import cache_dir, data_dir
    from saccade.store.schema import conform, parse_json, with_digest, without_digest
    from saccade.store.tensors import load_tensors, save_tensors

__all__ = [
    "Folder",
    "Hold",
    "amend_manifest",
    "atomic_file",
    "atomic_folder",
    "cache_dir",
    "conform",
    "data_dir",
    "fingerprint_model",
    "fingerprint_text",
    "fingerprint_tokenizer",
    "is_temporary",
    "load_tensors",
    "locked",
    "parse_json",
    "read_folder",
    "read_manifest",
    "read_tensors",
    "save_tensors",
    "settled_folder",
    "with_digest",
    "without_digest",
    "write_folder",
]

# Found on first use, because some of these need torch and the command line, which only asks for
# places, must start without it.
_MODULES = {
    "atomic": ("atomic_file", "atomic_folder", "is_temporary", "settled_folder"),
    "fingerprint": ("fingerprint_model", "fingerprint_text", "fingerprint_tokenizer"),
    "folder": (
        *("Folder", "amend_manifest", "read_folder", "read_manifest", "read_tensors"),
        "write_folder",
    ),
    "lock": ("Hold", "locked"),
    "places": ("cache_dir", "data_dir"),
    "schema": ("conform", "parse_json", "with_digest", "without_digest"),
    "tensors": ("load_tensors", "save_tensors"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"saccade.store.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
