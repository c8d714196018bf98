"""A training that is killed at any of its file operations resumes to the same result.

A forked child trains and is ended by `os._exit` just before its n-th operation on a file, so that
no `finally` runs and no buffer is flushed, as after SIGKILL. What it leaves is resumed and compared
with a run that nobody interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from saccade.errors import TrainingError
from saccade.store import folder as store_folder
from saccade.store.atomic import atomic_file
from saccade.zoo.recipes.run import load_run, settings_of_run, train_recipe
from saccade.zoo.training import run_state as run
from saccade.zoo.training.checkpoint import load_checkpoint
from saccade.zoo.training.run_folder import RunFolder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
KILLED = 113
# What Python announces before it does it; fsync and the writer of tensors are counted by hand.
EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "os.link"}
CLOCK = {"seconds", "units_per_second", "minutes", "evaluated"}


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """Neither git nor matplotlib nor the disk: they take longer than these trainings.

    Of three steps only the second leaves a checkpoint, and the end another.
    """
    save = run.Run.save

    def draw(path, lines, **_):
        with atomic_file(path) as temporary:
            temporary.write_text("a picture")

    monkeypatch.setattr(run, "save_curves", draw)
    monkeypatch.setattr(run, "commit", lambda: "")
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(
        run.Run,
        "save",
        lambda self: save(self) if self.state.step in (2, self.state.validated) else None,
    )


def train_tiny(folder: Path, *, resume: bool = False) -> None:
    """Three steps, each validated, a checkpoint after the second; at the end a mean is best."""
    from tiny import TINY

    training = replace(
        TINY.settings.training,
        epochs=3,
        learning_rate=0.3,
        seed=1,
        average_last=2,
        log_steps=2,
        checkpoint_minutes=0.0,
    )
    settings = replace(TINY.settings, batches=1, rows=5, training=training)
    if resume and RunFolder(folder).exists():
        assert settings_of_run(TINY, folder) == settings  # as the command asks for them
    train_recipe(TINY, folder, settings=settings, resume=resume)


def status_of_child(folder: Path, before_operation: Callable[[int], None]) -> int:
    """Train in a child that calls ``before_operation`` with the number of each; how it ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent hold no lock
        child = os.fork()
    if child == 0:
        status = 1
        try:
            numbers, save = count(1), store_folder.save_file

            def announce():
                before_operation(next(numbers))

            def on_event(event, args):
                is_writing = event == "open" and isinstance(args[2], int) and args[2] & os.O_ACCMODE
                if is_writing or event in EVENTS:
                    announce()

            def save_announced(*args, **kwargs):
                announce()
                save(*args, **kwargs)
                announce()

            store_folder.save_file = save_announced
            os.fsync = lambda _: announce()
            sys.addaudithook(on_event)
            train_tiny(folder)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def operations_after_a_change(folder: Path) -> list[int]:
    """The operations before which the folder is not as it was before the last one.

    To be killed between two that change nothing (a lock, a mode) is the same as once.
    """
    read_end, write_end = os.pipe()
    seen = [""]

    def look(number):
        held = [(str(file), file.read_bytes()) if file.is_file() else str(file) for file in walk()]
        if (found := repr(held)) != seen[0]:
            seen[0] = found
            os.write(write_end, f"{number}\n".encode())

    def walk():
        return sorted(folder.rglob("*")) if folder.exists() else []

    assert status_of_child(folder, look) == 0
    os.close(write_end)
    with open(read_end) as file:
        return [int(line) for line in file]


def kill_at(folder: Path, n: int) -> None:
    """Train in a child that is killed before its n-th operation."""
    status = status_of_child(folder, lambda number: os._exit(KILLED) if number == n else None)
    assert status == KILLED, f"before operation {n} the training ended by itself, with {status}"


def result(folder: Path) -> tuple[dict, dict]:
    """All that a run leaves, but for what a clock says: numbers, and tensors."""
    place = RunFolder(folder)
    saved, (best, about) = load_checkpoint(place.checkpoint), place.read_best()
    assert saved is not None
    log = [json.loads(line) for line in place.log.read_text().splitlines()]
    said = {
        "log": [without_clock(line) for line in log],
        "state": without_clock(saved.state.to_json()),
        "metrics": without_clock(place.metrics),
        "best": {key: about[key] for key in ("step", "scores")},
        "names": sorted(entry.name for entry in folder.iterdir() if entry.name[0] != "."),
        "recent": sorted(os.listdir(place.recent)),
    }
    held = {
        f"{part}.{name}": value
        for part in ("weights", "optimiser", "random", "window")
        for name, value in getattr(saved, part).items()
        if name not in ("0.python", "0.python_gauss")  # the checker of types draws from it
    }
    return said, {**held, **{f"best.{name}": value for name, value in best.items()}}


def without_clock(values: dict) -> dict:
    return {key: value for key, value in values.items() if key not in CLOCK}


def assert_same(found: tuple[dict, dict], expected: tuple[dict, dict]) -> None:
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for name, value in found[1].items():
        assert torch.equal(value, expected[1][name]), name


def test_a_training_killed_at_any_file_operation_resumes_to_the_same_result(tmp_path):
    train_tiny(tmp_path / "whole")
    expected = result(tmp_path / "whole")
    assert expected[0]["metrics"]["is_averaged"], "the mean must win, or it is not tested"
    points = operations_after_a_change(tmp_path / "watched")
    assert len(points) > 80, "the operations of a training are not seen"
    has_weights = False
    for n in points:
        folder = tmp_path / f"run-{n}"
        kill_at(folder, n)
        if has_weights:  # once written, weights are there at every moment
            load_run(folder)
        else:
            has_weights = (folder / "best").is_dir()
        train_tiny(folder, resume=True)
        assert_same(result(folder), expected)
    assert has_weights


def test_only_the_left_overs_of_a_beginning_may_be_begun_over(tmp_path):
    """What a stranger put there is refused, whether it is hidden or not."""
    for name in ("manifest.json.bak", ".hidden", ".kept.part", "kept.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / ".manifest.0123abcd.partial.json").write_text("{")
        (folder / name).write_text("mine")
        with pytest.raises(TrainingError, match=r"is no run of saccade: no manifest.json in it"):
            train_tiny(folder, resume=True)
        with pytest.raises(TrainingError, match="exists already"):
            train_tiny(folder)
        assert (folder / name).read_text() == "mine"
