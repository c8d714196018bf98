"""`tools/flows.py`: few files are on the way from a command to its output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "tools" / "flows.py"


def counted(model: Path, *flows: str, **environment: str) -> dict[str, dict]:
    """What the tool prints, run by itself: here the shape checker would stand on every path."""
    command = [sys.executable, str(SCRIPT), *flows, "--files", "--model", str(model)]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def over(found: dict[str, dict]) -> dict[str, list[str]]:
    """The files of the flows that have too many."""
    return {name: each["names"] for name, each in found.items() if each["files"] > each["most"]}


def test_flows_through_language_models_open_few_files(story_folder):
    found = counted(story_folder, "read", "lens fit", "click", "guard score")
    assert not over(found)
    assert "interp/heads/capture.py" in found["read"]["names"]  # it does see what is called
    assert "viewer/routes.py" in found["click"]["names"]


def test_training_and_its_animation_open_few_files(story_folder, data_with):
    found = counted(story_folder, "train", SACCADE_DATA=str(data_with("mnist")))
    assert not over(found)
    assert "zoo/models/ram.py" in found["train"]["names"]


@pytest.mark.parametrize(("flow", "message"), [("reed", "no flow 'reed'"), ("", "no flow ''")])
def test_an_unknown_flow_is_refused(story_folder, flow, message):
    command = [sys.executable, str(SCRIPT), flow, "--model", str(story_folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2 and message in found.stderr
