"""With what a run was made: versions, and the commit of the code."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch

import saccade

HERE = Path(saccade.__file__).parent


def versions() -> dict[str, str]:
    """The versions that results may depend on."""
    return {
        "saccade": saccade.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def commit() -> str:
    """The commit that this code was checked out at, with a + if it was changed; else empty."""
    # Code that was installed into a folder inside someone's repository is not of that repository.
    if not _git("ls-files", "__init__.py"):
        return ""
    changed = "+" if _git("status", "--porcelain", "--untracked-files=no", ".") else ""
    return _git("rev-parse", "--short=10", "HEAD") + changed


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(HERE), *words],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
