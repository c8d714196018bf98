"""A separate venv for JoeyNMT, which the benchmarks compare with and which is no dependency."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

from saccade.store.atomic import cache_dir

VERSION = "2.3.0"
# Packages that it imports but does not require, or pins to old versions (protobuf below 3.21, an
# old setuptools): its own requirements would install another torch and fail on Python 3.12.
NEEDS = (
    f"joeynmt=={VERSION}",
    "importlib_metadata<8",  # 8 removed a function that it calls
    "packaging",
    "plotly",
    "pyyaml",
    "sacremoses",
    "sentencepiece",
    "subword-nmt",
    "tensorboard",
)


def joeynmt_python(*, quiet: bool = False) -> Path:
    """The Python of that venv, which is created at the first call.

    Both sides must run on the same build of torch, so the venv falls back to the packages of this
    Python; JoeyNMT and its dependencies are installed in the venv.
    """
    home = cache_dir() / "bench" / f"joeynmt-{VERSION}-torch-{metadata.version('torch')}"
    python, done = home / "bin" / "python", home / "installed"
    if done.exists():
        return python
    if not quiet:
        print(f"installing JoeyNMT {VERSION} into {home}", file=sys.stderr)
    venv.create(home, with_pip=True, clear=True)
    behind = next(home.glob("lib/python*/site-packages")) / "behind.pth"
    behind.write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", NEEDS[0]], check=True, stdout=sys.stderr)
    subprocess.run([*pip, *NEEDS[1:]], check=True, stdout=sys.stderr)
    done.touch()
    return python
