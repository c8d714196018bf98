"""Commands run on the little model, with a cache of their own.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

from __future__ import annotations

import random
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


@pytest.fixture(scope="session")
def story() -> Any:
    """Writes stories of so many sentences, no two alike, to a file."""
    who, what = ("Lily", "Tom", "the cat", "a bird"), ("ball", "tree", "cake", "dog", "red car")
    did = ("saw", "liked", "found", "wanted", "looked for")

    def write(path: Path, *, sentences: int, seed: int = 0) -> Path:
        chance = random.Random(seed)
        text = (
            f"One day, {chance.choice(who)} {chance.choice(did)} the {chance.choice(what)}. "
            for _ in range(sentences)
        )
        path.write_text("".join(text), encoding="utf-8")
        return path

    return write


@pytest.fixture
def saccade(monkeypatch, tmp_path, capsys) -> Any:
    """Runs a command; its exit code, what it printed, and what it said on stderr."""
    from saccade.cli.main import main

    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: Any) -> tuple[int, str, str]:
        code = main([str(each) for each in arguments])
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
