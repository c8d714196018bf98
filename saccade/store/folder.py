"""A folder of tensors with a manifest that describes them and holds their checksums.

``manifest.json`` holds the caller's entries, plus ``format`` (the version of this layout)
and ``files`` (for each file its sha256 and its size in bytes). A folder is written and read as a
whole: all files read together are of one version, also while others replace the folder.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from annotated_types import Ge
from pydantic import StringConstraints
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from saccade.errors import StoreError
from saccade.store.atomic import (
    atomic_file,
    atomic_folder,
    settled_folder,
    write_refused,
    writing_alone,
)
from saccade.store.schema import conform, parse_json

# Named tensors in one safetensors file.


def save_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors (on any device, of any layout, views included) as one file, atomically.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tensors(f"{folder}/x.safetensors", {"mean": torch.arange(3)})
    ...     load_tensors(f"{folder}/x.safetensors")
    {'mean': tensor([0, 1, 2])}
    """
    with atomic_file(path) as temporary:
        write_tensors(temporary, tensors, metadata=metadata)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors in place, for callers that have a temporary path already.

    Raises:
        OSError: The error of the system, so that the caller can name the path the user knows.
    """
    # "format" tells other safetensors readers, transformers among them, which framework wrote it.
    header = {"format": "pt", **(metadata or {})}
    # safetensors renames a private file (mode 0600) over the path; an ordinary new file shows which
    # mode the user wants for theirs. The rename is also why `path` must never be a device.
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(_storable(tensors), path, metadata=header)
    except SafetensorError as error:
        raise _as_os_error(error) from error
    path.chmod(mode)


def load_tensors(path: str | Path, *, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Read the tensors of a file onto the CPU: all of them, or only those in ``names``."""
    try:
        with safe_open(path, framework="pt") as file:
            stored = set(file.keys())
            wanted = sorted(stored) if names is None else list(names)
            missing = [name for name in wanted if name not in stored]
            if missing:
                raise StoreError(
                    f"{path} holds no tensor named {', '.join(missing)}; "
                    f"it holds {', '.join(sorted(stored)) or 'none'}",
                    hint="create the file again with this version of saccade",
                )
            return {name: file.get_tensor(name) for name in wanted}
    except FileNotFoundError as error:
        raise StoreError(f"there is no file {path}", hint="check the path") from error
    except SafetensorError as error:
        raise StoreError(
            f"{path} is damaged: expected a whole safetensors file, found {error}",
            hint="copy or download it again, or create it again",
        ) from error
    except (OSError, RuntimeError) as error:  # torch opens the file once more, in its own way
        reason = str(error).partition("\n")[0]
        raise StoreError(f"could not read {path}: {reason}", hint="check the path") from error


def _storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Dense CPU tensors, no two of which share memory: the format stores nothing else."""
    storable: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        if plain.untyped_storage().data_ptr() in seen:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        storable[name] = plain
    return storable


def _as_os_error(error: SafetensorError) -> Exception:
    """The system's own error, which safetensors passes on as text ("... (os error 28)")."""
    found = re.search(r"([^:]*?) \(os error (\d+)\)", str(error))
    return OSError(int(found[2]), found[1].strip()) if found else error


FORMAT = 1
MANIFEST = "manifest.json"
_AGAIN = "copy or download the folder again, or create it again"
# An attempt fails only if a writer replaces the folder at that moment.
_ATTEMPTS = 20

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class _Entry:
    """The manifest's entry of one file."""

    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    bytes: Annotated[int, Ge(0)]


@dataclass(frozen=True)
class _Listed:
    """The part of a manifest that is checked here."""

    files: dict[str, _Entry]


class Folder(NamedTuple):
    """The contents of a folder, all of one version."""

    manifest: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]
    """File name -> named tensors."""


def write_folder(
    path: str | Path, manifest: dict[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Write ``tensors`` (file name -> named tensors) and the manifest as one folder, atomically.

    An existing folder is replaced, unless it holds files that saccade did not write. Of two
    processes that write one folder, one waits for the other.

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
    refuse_other_files(path)
    with writing_alone(path), atomic_folder(path) as temporary:
        files = {}
        for name, named in tensors.items():
            write_tensors(temporary / name, named)
            files[name] = {
                "sha256": _sha256(temporary / name),
                "bytes": (temporary / name).stat().st_size,
            }
        whole = {"format": FORMAT, **manifest, "files": files}
        (temporary / MANIFEST).write_text(_as_json(whole, path), encoding="utf-8")


def _as_json(manifest: dict[str, Any], path: str | Path) -> str:
    try:
        text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # `read_manifest` would refuse it
        raise StoreError(
            f"could not write {path}: expected finite numbers in its manifest, found NaN or inf",
            hint="the old version is kept; find out where the numbers overflow",
        ) from error
    return text + "\n"


def amend_manifest(path: str | Path, amend: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change entries of the manifest of a folder; its files stay as they are.

    No other process replaces the folder meanwhile: ``amend`` gets the current manifest, and may
    raise to leave it unchanged.

    Args:
        amend: From the whole manifest to its new entries.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/lens"
    ...     write_folder(path, {"kind": "toy"}, {"a.safetensors": {"mean": torch.arange(3)}})
    ...     amend_manifest(path, lambda manifest: {"kind": manifest["kind"] + "s"})
    ...     read_manifest(path)["kind"], read_tensors(path, "a.safetensors")
    ('toys', {'mean': tensor([0, 1, 2])})
    """
    with writing_alone(path):
        manifest = read_manifest(path)
        whole = {**manifest, **amend(manifest)}
        with atomic_file(settled_folder(path) / MANIFEST) as temporary:
            temporary.write_text(_as_json(whole, path), encoding="utf-8")


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Read the manifest of a folder that `write_folder` made."""
    return _from_one_version(path, lambda folder: _manifest_of(folder, path))


def read_folder(path: str | Path, *, needs: Iterable[str] = ()) -> Folder:
    """Read the manifest and all its files, each compared with the manifest's size and sha256.

    Everything is of one version of the folder, also if others replace it meanwhile.

    Args:
        needs: Names of files that the manifest has to list.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/lens"
    ...     write_folder(path, {"kind": "toy"}, {"a.safetensors": {"mean": torch.arange(3)}})
    ...     manifest, tensors = read_folder(path, needs=["a.safetensors"])
    ...     manifest["kind"], tensors
    ('toy', {'a.safetensors': {'mean': tensor([0, 1, 2])}})
    """
    names = list(needs)

    def read(folder: Path) -> Folder:
        manifest = _manifest_of(folder, path)
        for name in names:
            _refuse_missing(name, manifest, path)
        tensors = {file: _load(folder, file, manifest) for file in manifest["files"]}
        return Folder(manifest, tensors)

    return _from_one_version(path, read)


def read_tensors(path: str | Path, file: str, *, verify: bool = True) -> dict[str, Tensor]:
    """Read one file of a folder, after comparing its size and sha256 with the manifest's.

    Args:
        path: The folder.
        file: A name among the manifest's ``files``.
        verify: False skips the sha256 (not the size), for files that were just checked.
    """

    def read(folder: Path) -> dict[str, Tensor]:
        manifest = _manifest_of(folder, path)
        _refuse_missing(file, manifest, path)
        return _load(folder, file, manifest, verify=verify)

    return _from_one_version(path, read)


def _from_one_version(path: str | Path, read: Callable[[Path], _Read]) -> _Read:
    """The result of ``read`` on a folder that was not replaced meanwhile, or the error it raises.

    Otherwise it is read again.
    """
    for _ in range(_ATTEMPTS):
        folder = settled_folder(path)
        with _opened(folder) as opened:
            try:
                found = read(folder)
            except StoreError:
                if _is_settled(path, folder, opened):
                    raise
                continue
            if _is_settled(path, folder, opened):
                return found
    raise StoreError(
        f"could not read {path}: it was replaced {_ATTEMPTS} times while it was read",
        hint="wait until the process that writes it is done",
    )


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """Keep a folder open, so that its inode is not reused; yield None where there is none."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_settled(path: str | Path, folder: Path, opened: int | None) -> bool:
    """Whether the folder is still where it was opened, or still cannot be opened.

    The same folder under another name is being replaced: what was read by its name a moment ago
    may have been missing, or another folder.
    """
    if (place := settled_folder(path)) != folder:
        return False
    with _opened(place) as now:
        if opened is None or now is None:
            return opened is now
        return os.path.samestat(os.fstat(opened), os.fstat(now))


def _manifest_of(folder: Path, path: str | Path) -> dict[str, Any]:
    """The checked manifest in ``folder``, which holds what the user knows as ``path``."""
    file = folder / MANIFEST
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        found = "no manifest.json in it" if folder.is_dir() else "no such folder"
        raise StoreError(
            f"{path} is not a folder that saccade wrote: {found}", hint="check the path"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"could not read {file}: {reason.lower()}", hint="check the path"
        ) from error
    return _checked(parse_json(text, where=file), file)


def _refuse_missing(file: str, manifest: dict[str, Any], path: str | Path) -> None:
    files = manifest["files"]
    if file not in files:
        raise StoreError(
            f"{path} has no file {file}: its manifest lists {', '.join(sorted(files)) or 'none'}",
            hint="the folder may be of another kind, or written by another version",
        )


def _load(
    folder: Path, file: str, manifest: dict[str, Any], *, verify: bool = True
) -> dict[str, Tensor]:
    whole, expected = folder / file, manifest["files"][file]
    try:
        found = whole.stat().st_size if whole.is_file() else None
        digest = _sha256(whole) if verify and found == expected["bytes"] else None
    except FileNotFoundError:
        found, digest = None, None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StoreError(f"could not read {whole}: {reason}", hint=_AGAIN) from error
    if found is None:
        raise StoreError(f"{whole} is missing although the manifest lists it", hint=_AGAIN)
    if found != expected["bytes"]:
        raise StoreError(
            f"{whole} is truncated or changed: expected {expected['bytes']} bytes, found {found}",
            hint=_AGAIN,
        )
    if digest is not None and digest != expected["sha256"]:
        raise StoreError(
            f"{whole} was changed after it was written: expected sha256 "
            f"{expected['sha256'][:16]}..., found {digest[:16]}...",
            hint=_AGAIN,
        )
    return load_tensors(whole)


def _checked(manifest: object, file: Path) -> dict[str, Any]:
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if not isinstance(manifest, dict) or type(version) is not int or version < 1:
        raise StoreError(
            f"{file} is not a manifest of saccade: expected an object with a `format` number",
            hint="check the path",
        )
    if version > FORMAT:
        raise StoreError(
            f"{file} has format {version}, this saccade reads up to {FORMAT}",
            hint="it was written by a newer saccade: `pip install --upgrade saccade`",
        )
    listed = conform(_Listed, {"files": manifest.get("files")}, where=file)
    for name in listed.files:
        if not _is_plain(name):
            raise StoreError(
                f"{file} is damaged: files: expected plain file names, found {name[:60]!r}",
                hint=_AGAIN,
            )
    return manifest


def _is_plain(name: str) -> bool:
    """Security: a manifest from elsewhere must not name files outside its folder."""
    return bool(name) and Path(name).name == name and "\\" not in name and not name.startswith(".")


def refuse_other_files(path: str | Path, ours: Collection[str] | None = None) -> None:
    """`--out ~` must not replace a home folder: only files that saccade wrote are replaced.

    Args:
        ours: their names; by default the manifest and the files it names.
    """
    others = _from_one_version(path, lambda folder: _other_files(folder, path, ours))
    if others:
        shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise StoreError(
            f"{path} holds files that saccade did not write ({shown}) and is not replaced",
            hint="choose a new folder, or move those files away",
        )


def _other_files(folder: Path, path: str | Path, ours: Collection[str] | None) -> list[str]:
    if not os.path.isdir(folder):
        return []
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise write_refused(path, error) from error
    ours = _names_of(folder, path, names) if ours is None else ours
    return [name for name in names if name not in ours]


def _names_of(folder: Path, path: str | Path, names: Collection[str]) -> Collection[str]:
    """Those of the names that belong to a folder of saccade."""
    try:
        return {MANIFEST, *_manifest_of(folder, path)["files"]}
    except StoreError:
        # A damaged folder of saccade may be replaced; it has a manifest, even if unreadable.
        ours = {name for name in names if name == MANIFEST or name.endswith(".safetensors")}
        return ours if MANIFEST in names else set()


def _sha256(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
