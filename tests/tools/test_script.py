"""Every tool is a script with the manners of a command: help with examples, errors in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TOOLS = ("results", "gallery", "lengths", "systems", "screenshots")


def test_every_help_shows_the_examples_of_the_docstring(tool, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    wrong = []
    for name in TOOLS:
        code, out, _ = tool(name, "--help")
        shown = [line.strip() for line in out.splitlines() if line.strip()]
        about = [line.strip() for line in (sys.modules[name].__doc__ or "").splitlines()]
        examples = [line for line in about if line.startswith("python tools/")]
        has_all = len(examples) == 2 and shown[-2:] == examples and shown[-3] == "Examples:"
        if code != 0 or not has_all or f"python tools/{name}.py" not in examples[0]:
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize("name", TOOLS)
def test_misuse_is_one_line_and_a_hint(tool, told_in_a_line, name):
    code, out, err = tool(name, "--colour")
    assert code == 2 and out == "" and "No such option" in told_in_a_line(err)
    assert f"`python tools/{name}.py --help` shows what it takes" in err
    code, _, err = tool(name, "--out" if name != "lengths" else "--png", "")
    assert code == 2 and "expected a path, got an empty text" in told_in_a_line(err)


def test_a_script_runs_by_itself_from_any_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "gallery.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error == "error: no run in runs/ is done and has pictures"
    assert hint == "hint: `saccade train ram-mnist` makes one"
