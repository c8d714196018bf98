"""Load a file of the user's own that registers a lens, an objective or a recipe."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from saccade.errors import UsageError


def load_plugin(path: Path | None) -> None:
    """Run the file, so that what it registers is known; nothing without one."""
    if path is None:
        return
    spec = importlib.util.spec_from_file_location(f"saccade_plugin_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"no plugin at {path}", hint="give a Python file that registers something")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up the types of their fields
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        raise UsageError(
            f"the plugin {path} fails: {type(error).__name__}: {error}",
            hint="`saccade --debug ...` shows where",
        ) from error
