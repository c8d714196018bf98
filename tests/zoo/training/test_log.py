"""The log: means over units, nothing that is not a number, and lines that can be cut off."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from saccade.distributed import Processes
from saccade.errors import StoreError, TrainingError
from saccade.zoo.training.job import LossOut, Window
from saccade.zoo.training.loop import train
from saccade.zoo.training.run_folder import Log, RunFolder, read_log


def window(*rows):
    found = Window(Processes())
    for loss, n in rows:
        out = LossOut(torch.tensor(loss), n, {"twice": 2 * loss})
        found.add(out, torch.tensor(loss + 1), n=n)
    return found


def test_the_mean_is_over_units_not_over_steps():
    means, n, losses = window((1.0, 3), (2.0, 5)).means(last_step=2)
    assert n == 8 and losses == (1.0, 2.0)
    assert means == pytest.approx(
        {"loss": 13 / 8, "gradient_norm": 13 / 8 + 1, "twice": 2 * 13 / 8}
    )


def test_the_means_have_a_fixed_order():
    names = ["zeta", "beta", "nu", "alpha", "mu"]
    for order in (names, sorted(names), names[::-1]):
        found = Window(Processes())
        logged = dict.fromkeys(order, 1.0)
        found.add(LossOut(torch.tensor(1.0), 3, logged), torch.tensor(2.0), n=3)
        assert list(found.means(last_step=1).values) == ["loss", "gradient_norm", *sorted(names)]


def test_the_speed_is_units_over_the_time_since_the_last_line(tiny_job, tmp_path):
    train(tiny_job(epochs=3, log_steps=1), tmp_path / "run")
    lines = read_log(tmp_path / "run" / "log.jsonl")
    logged = [line for line in lines if "units_per_second" in line]
    assert len(logged) > 5
    # Every step takes a full batch or the rest of one, so the units a line stands for are few.
    for before, line in pairwise(logged):
        units = line["units_per_second"] * (line["seconds"] - before["seconds"] + 0.001)
        assert 0 < units < 10_000


def test_a_window_comes_back_from_its_tensors():
    first = window((1.0, 3), (2.0, 5))
    again = Window(Processes())
    again.restore(first.tensors(), device=torch.device("cpu"))
    for each in (first, again):
        each.add(LossOut(torch.tensor(0.3), 7, {"twice": 0.6}), torch.tensor(0.1), n=7)
    assert first.means(last_step=3) == again.means(last_step=3)
    assert len(again) == 3
    again.clear()
    assert again.means(last_step=3).n == 0 and again.tensors() == {}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(1.0, 3), (float("nan"), 5), (float("nan"), 2)], "the loss is nan at step 12"),
        ([(1.0, 3), (2.0, 5), (float("inf"), 2)], "the loss is inf at step 13"),
    ],
)
def test_the_first_step_that_is_no_number_is_named(rows, words):
    with pytest.raises(TrainingError, match=words) as refused:
        window(*rows).means(last_step=13)
    assert "the last checkpoint is kept" in refused.value.hint


def test_a_gradient_that_is_no_number_is_found_too():
    found = window((1.0, 3))
    found.add(LossOut(torch.tensor(1.0), 2, {"twice": 2.0}), torch.tensor(float("nan")), n=2)
    with pytest.raises(TrainingError, match="the gradient norm is nan at step 8"):
        found.means(last_step=8)


def test_lines_are_json_even_when_a_number_is_none(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    log.write({"step": 1, "loss": 0.5, "odd": float("nan"), "validation": {"x": float("inf")}})
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 1, "loss": 0.5, "odd": None, "validation": {"x": None}}


def test_what_came_after_a_checkpoint_is_cut_off(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    for step in (5, 10, 15):
        log.write({"step": step, "loss": 1.0})
        log.write({"step": step, "validation": {}})
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 20, "lo')  # the process was killed here
    log.cut(step=10, validated=5)
    kept = [(line["step"], "validation" in line) for line in read_log(tmp_path / "log.jsonl")]
    assert kept == [(5, False), (5, True), (10, False)]
    Log(tmp_path / "other.jsonl").cut(step=1, validated=1)  # nothing there: nothing to do


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_in_one_line_and_the_run_can_be_resumed(
    tiny_job, tmp_path, monkeypatch, curve
):
    train(tiny_job(epochs=2), tmp_path / "whole")
    with monkeypatch.context() as full:
        full.setattr(RunFolder, "log", FULL)
        full.setattr(Log, "cut", lambda *_, **__: None)  # this device is never read to its end
        with pytest.raises(StoreError) as refused:
            train(tiny_job(epochs=2), tmp_path / "run")
    assert str(refused.value).startswith("could not write /dev/full: no space left on device")
    assert "free some space" in refused.value.hint
    train(tiny_job(epochs=2), tmp_path / "run", resume=True)
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")
