"""A venv of its own for JoeyNMT, which is measured beside us and is no dependency of ours."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

from saccade.store.atomic import cache_dir

VERSION = "2.3.0"
# What it imports and does not name, or names so that nothing new fits (protobuf below 3.21, an old
# setuptools): its own requirements would pull another torch and fail on Python 3.12.
NEEDS = (
    f"joeynmt=={VERSION}",
    "importlib_metadata<8",  # 8 has lost what it calls
    "packaging",
    "plotly",
    "pyyaml",
    "sacremoses",
    "sentencepiece",
    "subword-nmt",
    "tensorboard",
)


def joeynmt_python(*, quiet: bool = False) -> Path:
    """The Python of that venv, which is made at the first call.

    Both sides must run on the same build of torch, so the venv sees this Python's packages behind
    its own; everything that is JoeyNMT's is installed in it.
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
