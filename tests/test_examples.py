"""The scripts of examples/ are short, and run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.name)
def test_an_example_has_fewer_than_fifteen_lines(script):
    assert len(script.read_text("utf-8").splitlines()) < 15


def test_the_example_of_heads_shows_the_five_that_matter_most(story_folder):
    lines = run("hello_head.py", str(story_folder)).splitlines()
    effects = [float(line.split()[1]) for line in lines]
    assert len(lines) == 5 and effects == sorted(effects, reverse=True)
    assert all("promotes" in line for line in lines)


def test_the_example_of_the_zoo_trains_a_system_and_has_its_weights():
    out = run("hello_zoo.py")
    assert "wrong bits: " in out and "weights [head, step, slot]: (2, 7, " in out
    assert float(out.split()[2]) < 9 / 2  # fewer than by chance
