"""`tools/screenshots.py`: pictures of the viewer as it runs, taken by a real browser."""

import json
import shutil

import pytest

import screenshots


def test_the_screen_of_runs_is_taken_without_a_model(tool, tiny_run, tmp_path):
    pytest.importorskip("playwright")
    if not any(map(shutil.which, screenshots.CHROMIUM)):
        pytest.skip("no chromium on the PATH")
    shutil.copytree(tiny_run, tmp_path / "runs" / "tiny")
    asked = ["--no-model", "--only", "traces", "--out", tmp_path / "pictures"]
    code, out, err = tool("screenshots", tmp_path / "runs", *asked, "--json")
    assert code == 0, err
    (picture,) = json.loads(out)["wrote"]
    assert picture == str(tmp_path / "pictures" / "traces.png")
    content = (tmp_path / "pictures" / "traces.png").read_bytes()
    assert content[:4] == b"\x89PNG"
    assert [int.from_bytes(content[at : at + 4]) for at in (16, 20)] == [1440, 900]
    code, _, err = tool("screenshots", tmp_path / "runs", "--no-model", "--only", "trace")
    assert code == 2 and "there is no screenshot 'trace'" in err and "did you mean 'traces'?" in err


def test_without_a_browser_it_says_what_to_install(tool, monkeypatch, told_in_a_line):
    pytest.importorskip("playwright")
    monkeypatch.setattr(screenshots, "CHROMIUM", ())
    code, _, err = tool("screenshots", "--no-model")
    assert code == 1 and told_in_a_line(err) == "error: no chromium on the PATH"


def test_a_viewer_that_does_not_start_is_told(tool, tmp_path, told_in_a_line):
    pytest.importorskip("playwright")
    if not any(map(shutil.which, screenshots.CHROMIUM)):
        pytest.skip("no chromium on the PATH")
    code, _, err = tool("screenshots", tmp_path / "nowhere", "--no-model")
    assert code == 1 and told_in_a_line(err) == "error: the viewer did not start"
