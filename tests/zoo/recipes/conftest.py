"""The tiny recipe, and a run of it; `tests/zoo/training/tiny.py` has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """Models this small lose more by sharing their work than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def tiny() -> Any:
    """The recipe, known to every command."""
    from tiny import TINY

    from saccade.zoo.recipes.registry import register_recipe

    register_recipe(TINY)  # again: a test of `--plugin` may have put its own copy there
    return TINY


@pytest.fixture(scope="package")
def tiny_run(tiny, tmp_path_factory) -> Path:
    """A run that has learnt; not to be changed."""
    from saccade.zoo.recipes.run import train_recipe
    from saccade.zoo.recipes.settings import with_settings

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train_recipe(tiny, folder, settings=with_settings(tiny.settings, ["epochs=12"]))
    return folder
