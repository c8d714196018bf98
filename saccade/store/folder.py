"""A folder of tensors with a manifest that says what they are and proves that they are whole.

``manifest.json`` holds what the caller wants to say, plus ``format`` (the version of this layout)
and ``files`` (for each file its sha256 and its size in bytes). A folder is written as a whole.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.errors import StoreError
from saccade.store.atomic import atomic_folder, settled_folder
from saccade.store.tensors import load_tensors, write_tensors

FORMAT = 1
MANIFEST = "manifest.json"
_AGAIN = "copy or download the folder again, or make it anew"


def write_folder(
    path: str | Path, manifest: dict[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Write ``tensors`` (file name -> named tensors) and the manifest as one folder, atomically.

    A folder that is already there is replaced, unless it holds something we did not write.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/lens"
    ...     write_folder(path, {"kind": "toy"}, {"a.safetensors": {"mean": torch.arange(3)}})
    ...     read_manifest(path)["kind"], read_tensors(path, "a.safetensors")
    ('toy', {'mean': tensor([0, 1, 2])})
    """
    taken = {"format", "files"} & manifest.keys()
    assert not taken, f"the manifest's keys {sorted(taken)} are filled in by write_folder"
    for name in tensors:
        assert _is_plain(name) and name != MANIFEST, f"{name!r} cannot name a file of tensors"
    _refuse_to_lose_strangers(Path(path))
    with atomic_folder(path) as temporary:
        files = {}
        for name, named in tensors.items():
            write_tensors(temporary / name, named)
            files[name] = {
                "sha256": _sha256(temporary / name),
                "bytes": (temporary / name).stat().st_size,
            }
        whole = {"format": FORMAT, **manifest, "files": files}
        text = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
        (temporary / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Read the manifest of a folder that `write_folder` made."""
    file = settled_folder(path) / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        found = "no manifest.json in it" if Path(path).is_dir() else "no such folder"
        raise StoreError(
            f"{path} is no folder that saccade wrote: {found}", hint="check the path"
        ) from error
    except OSError as error:
        raise StoreError(f"could not read {file}: {error}", hint="check the path") from error
    except ValueError as error:  # not JSON, or not even text
        raise StoreError(f"{file} is damaged: {error}", hint=_AGAIN) from error
    return _checked(manifest, file)


def read_tensors(path: str | Path, file: str, *, verify: bool = True) -> dict[str, Tensor]:
    """Read one file of a folder, after comparing its size and sha256 with the manifest's.

    Args:
        path: The folder.
        file: A name among the manifest's ``files``.
        verify: False skips the sha256 (not the size), for files that were just checked.
    """
    files = read_manifest(path)["files"]
    if file not in files:
        raise StoreError(
            f"{path} has no file {file}: its manifest lists {', '.join(sorted(files)) or 'none'}",
            hint="the folder may have been made for another purpose, or by another version",
        )
    whole, expected = settled_folder(path) / file, files[file]
    if not whole.is_file():
        raise StoreError(f"{whole} is missing though the manifest lists it", hint=_AGAIN)
    if (found := whole.stat().st_size) != expected["bytes"]:
        raise StoreError(
            f"{whole} is cut short or changed: expected {expected['bytes']} bytes, found {found}",
            hint=_AGAIN,
        )
    if verify and (digest := _sha256(whole)) != expected["sha256"]:
        raise StoreError(
            f"{whole} was changed after it was written: expected sha256 "
            f"{expected['sha256'][:16]}..., found {digest[:16]}...",
            hint=_AGAIN,
        )
    return load_tensors(whole)


def _checked(manifest: object, file: Path) -> dict[str, Any]:
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if not isinstance(manifest, dict) or type(version) is not int:
        raise StoreError(
            f"{file} is no manifest of saccade: expected an object with a `format` number",
            hint="check the path",
        )
    if version > FORMAT:
        raise StoreError(
            f"{file} has format {version}, this saccade reads up to {FORMAT}",
            hint="it was written by a newer saccade: `pip install --upgrade saccade`",
        )
    files = manifest.get("files")
    sound = isinstance(files, dict) and all(
        _is_plain(name) and isinstance(entry, dict) and {"sha256", "bytes"} <= entry.keys()
        for name, entry in files.items()
    )
    if not sound:
        raise StoreError(f"{file} is damaged: its list of files cannot be read", hint=_AGAIN)
    return manifest


def _is_plain(name: str) -> bool:
    """A manifest from elsewhere must not make us read outside its folder."""
    return bool(name) and Path(name).name == name and "\\" not in name and not name.startswith(".")


def _refuse_to_lose_strangers(path: Path) -> None:
    """`--out ~` must not replace someone's home: only what we wrote may be replaced."""
    if not path.is_dir():
        return
    held = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    try:
        ours = {MANIFEST, *read_manifest(path)["files"]}
    except StoreError:
        # A damaged folder of ours may be replaced; it has a manifest, if an unreadable one.
        ours = {name for name in held if name == MANIFEST or name.endswith(".safetensors")}
        ours = ours if MANIFEST in held else set()
    strangers = [name for name in held if name not in ours]
    if strangers:
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        raise StoreError(
            f"{path} holds what saccade did not write ({shown}) and is not replaced",
            hint="choose a new folder, or move those files away",
        )


def _sha256(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
