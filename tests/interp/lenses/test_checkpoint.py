"""Where an interrupted fit resumes: found by its settings, checked, kept by one process."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch

from saccade.distributed import Processes
from saccade.errors import StoreError
from saccade.interp.lenses import gather as checkpoints
from saccade.interp.lenses.gather import Checkpoint, FitInterrupted, unfinished_fit

SETTINGS = {"tokens": 5, "model": "ab", "layers": (1, 2)}
SAVED = {"a": torch.arange(300), "done": torch.tensor(7)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def unfinished(tmp_path):
    """Where the checkpoints are."""
    return tmp_path / "cache" / "unfinished"


class Killed(BaseException):
    """Ends a fit without its consent."""


def left_by_a_killed_fit(*stages, rank=0, saved=SAVED, **changed):
    """The folder with the checkpoints of a fit that came so far."""
    with (
        suppress(Killed),
        unfinished_fit({**SETTINGS, **changed}, rank=rank) as fit,
    ):
        for stage in stages:
            with fit.stage(stage) as checkpoint:
                checkpoint.save(saved)
        raise Killed
    return fit.folder


def found(stage="reading", rank=0, **changed):
    """What a fit with these settings finds when it starts; it is then killed."""
    with (
        suppress(Killed),
        unfinished_fit({**SETTINGS, **changed}, rank=rank) as fit,
        fit.stage(stage) as checkpoint,
    ):
        loaded = checkpoint.load()
        raise Killed
    return loaded


def test_the_same_settings_find_what_was_saved_and_others_do_not():
    left_by_a_killed_fit("reading")
    assert torch.equal(found()["a"], SAVED["a"])
    assert found(tokens=6) is None
    assert found(rank=1) is None
    assert found(stage="polishing") is None


def test_another_version_of_saccade_does_not_resume_it(monkeypatch):
    left_by_a_killed_fit("reading")
    monkeypatch.setattr(checkpoints, "__version__", "99")
    assert found() is None


def test_a_fit_that_is_done_leaves_nothing_of_any_stage(unfinished):
    left_by_a_killed_fit("reading", "polishing")
    with unfinished_fit(SETTINGS) as fit, fit.stage("polishing") as checkpoint:
        checkpoint.save(SAVED)
    assert not list(unfinished.iterdir())


def test_a_fit_that_fails_before_it_saves_leaves_nothing(unfinished):
    with pytest.raises(ValueError, match="bad"), unfinished_fit(SETTINGS):
        raise ValueError("bad")
    assert not list(unfinished.iterdir())


def test_no_flipped_bit_or_missing_end_of_a_checkpoint_changes_what_is_resumed():
    generator = random.Random(3)
    files = sorted((left_by_a_killed_fit("reading") / "reading").iterdir())
    assert len(files) == 2
    refused = 0
    for file in files:
        whole = file.read_bytes()
        for _ in range(60):
            damaged = bytearray(whole)
            damaged[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
            file.write_bytes(damaged if generator.random() < 0.8 else whole[: len(damaged) // 2])
            loaded = found()
            refused += loaded is None
            # A bit of the manifest that says nothing of the tensors may be flipped.
            assert loaded is None or file.name == "manifest.json"
            assert loaded is None or all(torch.equal(loaded[name], SAVED[name]) for name in SAVED)
        file.write_bytes(whole)
    assert refused >= 60
    assert found() is not None


def test_it_is_not_written_again_and_again(monkeypatch, tmp_path):
    begun = []

    def tensors():
        begun.append(1)
        return {"a": torch.arange(3)}

    kept = Checkpoint(tmp_path, "reading")
    kept.save_sometimes(tensors)
    assert not begun and kept.load() is None  # it has only just begun
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "PAUSE_OVER_WRITING", 0)
    kept.save_sometimes(tensors)
    assert begun == [1] and kept.load() is not None
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 1000.0)
    kept.save_sometimes(tensors)
    assert begun == [1]


def test_of_two_same_fits_at_once_one_keeps_checkpoints_and_neither_disturbs_the_other():
    with suppress(Killed), unfinished_fit(SETTINGS) as first:
        with first.stage("reading") as kept:
            kept.save(SAVED)
        with unfinished_fit(SETTINGS) as second, second.stage("reading") as other:
            assert other.load() is None
            other.save({"a": torch.zeros(1)})
        assert torch.equal(kept.load()["a"], SAVED["a"])  # the second is done, the first is not
        raise Killed
    assert torch.equal(found()["a"], SAVED["a"])


def test_processes_of_one_fit_have_a_checkpoint_each():
    with suppress(Killed), unfinished_fit(SETTINGS, rank=0) as one:
        with unfinished_fit(SETTINGS, rank=1) as other, other.stage("reading") as second:
            with one.stage("reading") as first:
                first.save({"a": torch.tensor([0])})
            second.save({"a": torch.tensor([1])})
            assert (first.load()["a"], second.load()["a"]) == (0, 1)
        raise Killed
    assert found(rank=0) is not None and found(rank=1) is None


def test_ctrl_c_saves_the_state_between_two_steps_and_says_that_the_fit_resumes():
    steps = []

    def fit():
        with unfinished_fit(SETTINGS) as unfinished, unfinished.stage("reading") as checkpoint:
            for step in range(5):
                steps.append(step)
                if step == 2:
                    os.kill(os.getpid(), signal.SIGINT)
                steps.append(step)  # the step is not torn apart
                checkpoint.save_sometimes(lambda n=step: {"done": torch.tensor(n)})

    with pytest.raises(FitInterrupted, match="the fit is saved; the same command resumes it"):
        fit()
    assert steps == [0, 0, 1, 1, 2, 2]
    assert found()["done"] == 2


@pytest.fixture
def _ctrl_c():
    """What Ctrl-C does by default: a shell starts a job in the background with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_outside_of_a_stage_ends_the_fit_at_once_and_keeps_the_stages_before():
    def fit():
        with unfinished_fit(SETTINGS) as unfinished:
            with unfinished.stage("reading") as checkpoint:
                checkpoint.save(SAVED)
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("nothing may follow")

    with pytest.raises(FitInterrupted):
        fit()
    assert found() is not None


def test_ctrl_c_in_the_last_step_of_a_stage_is_not_lost():
    def fit():
        with unfinished_fit(SETTINGS) as unfinished, unfinished.stage("reading") as checkpoint:
            checkpoint.save(SAVED)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(FitInterrupted):
        fit()


def test_an_interrupted_fit_without_a_checkpoint_does_not_promise_to_resume(unfinished):
    def fit():
        with unfinished_fit(SETTINGS):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        fit()
    assert caught.type is KeyboardInterrupt
    assert not list(unfinished.iterdir())
    # The same while another process keeps the checkpoint.
    with suppress(Killed), unfinished_fit(SETTINGS) as first:
        with first.stage("reading") as kept:
            kept.save(SAVED)
        with pytest.raises(KeyboardInterrupt) as caught:
            fit()
        assert caught.type is KeyboardInterrupt
        raise Killed


class Together(Processes):
    """The second of two processes of which the first was asked to stop."""

    def largest(self, tensor):
        tensor.fill_(1)

    def wait(self):
        pass


def test_processes_in_step_stop_together_and_the_first_one_saves(tmp_path):
    for rank in (0, 1):
        checkpoint = Checkpoint(tmp_path / str(rank), "polishing")
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save_sometimes(lambda: SAVED, together=Together(rank=rank, world=2))
        assert (checkpoint.load() is None) == (rank == 1)


def test_abandoned_checkpoints_are_removed_but_none_that_is_held_or_young(unfinished):
    long_ago = time.time() - checkpoints.KEPT_SECONDS - 60

    def make_old(folder):
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (long_ago, long_ago))

    old, young = (
        left_by_a_killed_fit("reading", tokens=1),
        left_by_a_killed_fit("reading", tokens=2),
    )
    before_locks = unfinished / "0123456789abcdef"
    before_locks.mkdir()
    (before_locks / "reading-0.safetensors").write_bytes(b"old layout")
    with suppress(Killed), unfinished_fit({**SETTINGS, "tokens": 3}) as activation:
        with activation.stage("reading") as checkpoint:
            checkpoint.save(SAVED)
        for folder in (old, before_locks, activation.folder):
            make_old(folder)
        with unfinished_fit({**SETTINGS, "tokens": 4}):
            pass
        raise Killed
    exists = [folder.exists() for folder in (old, before_locks, young, activation.folder)]
    assert exists == [False, False, True, True]


def test_a_cache_that_is_a_file_is_told_in_one_line_before_anything_is_read(tmp_path):
    (tmp_path / "cache").write_text("a file")
    tokens = r"could not write .*/unfinished/"
    with pytest.raises(StoreError, match=tokens) as caught, unfinished_fit(SETTINGS):
        pytest.fail("the fit must not begin")
    assert "SACCADE_CACHE" in caught.value.hint and "\n" not in str(caught.value)


# Same fits begin, save and end at the same time, again and again.
CROWD = """
import os, sys, torch
from saccade.interp.lenses.gather import unfinished_fit
children = []
for _ in range(3):
    if (child := os.fork()) == 0:
        try:
            for n in range(30):
                with unfinished_fit({"fit": n // 10}) as fit, fit.stage("reading") as checkpoint:
                    found = checkpoint.load()
                    assert found is None or found["a"].numel() == 5
                    checkpoint.save({"a": torch.arange(5)})
                    assert checkpoint.is_kept == (checkpoint.load() is not None)
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def test_same_fits_in_several_processes_all_come_to_their_end(unfinished):
    done = subprocess.run(
        [sys.executable, "-c", CROWD], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(unfinished.iterdir())
