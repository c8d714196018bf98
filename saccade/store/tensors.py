"""Named tensors in one safetensors file."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from saccade.errors import StoreError
from saccade.store.atomic import atomic_file


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
        OSError: Whatever the system said, so that the caller can name the path the user knows.
    """
    # "format" tells other safetensors readers, transformers among them, who wrote the file.
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
            held = set(file.keys())
            wanted = sorted(held) if names is None else list(names)
            missing = [name for name in wanted if name not in held]
            if missing:
                raise StoreError(
                    f"{path} holds no tensor named {', '.join(missing)}; "
                    f"it holds {', '.join(sorted(held)) or 'none'}",
                    hint="make the file again with this version of saccade",
                )
            return {name: file.get_tensor(name) for name in wanted}
    except FileNotFoundError as error:
        raise StoreError(f"there is no file {path}", hint="check the path") from error
    except SafetensorError as error:
        raise StoreError(
            f"{path} is damaged: expected a whole safetensors file, found {error}",
            hint="copy or download it again, or make it anew",
        ) from error
    except (OSError, RuntimeError) as error:  # torch opens the file once more, in its own way
        reason = str(error).partition("\n")[0]
        raise StoreError(f"could not read {path}: {reason}", hint="check the path") from error


def _storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Dense CPU tensors, no two of which share memory: the format holds nothing else."""
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
    """The system's own error, which safetensors passes on as words ("... (os error 28)")."""
    found = re.search(r"([^:]*?) \(os error (\d+)\)", str(error))
    return OSError(int(found[2]), found[1].strip()) if found else error
