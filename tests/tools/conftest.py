"""A tool of `tools/` is run as its script would be, on a run of the tiny recipe.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tool(capsys) -> Any:
    """Runs a tool; its exit code, what it printed, and what it said on stderr."""

    def run(name: str, *arguments: Any) -> tuple[int, str, str]:
        code = import_module(name).main([str(each) for each in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def told_in_a_line() -> Any:
    """Checks that an error is one line and one hint, and gives the line."""

    def check(err: str) -> str:
        error, hint = err.strip().splitlines()[-2:]
        assert error.startswith("error: ") and hint.startswith("hint: ") and "Traceback" not in err
        return error

    return check


@pytest.fixture(scope="module")
def tiny() -> Any:
    """The recipe, known to every tool; `tests/zoo/training/tiny.py` has it."""
    from tiny import TINY

    from saccade.zoo.recipes.recipe import register_recipe

    register_recipe(TINY)
    return TINY


@pytest.fixture(scope="module")
def tiny_run(tiny, tmp_path_factory) -> Path:
    """A run that has learnt little; not to be changed."""
    from saccade.zoo.recipes.run import train_recipe
    from saccade.zoo.training.settings import with_settings

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train_recipe(tiny, folder, settings=with_settings(tiny.settings, ["epochs=1"]))
    return folder
