"""Training in processes of its own: killed and taken up again, and shared by two.

What is judged is the command itself; it must end in what one go in one process gives.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from saccade.zoo.training.checkpoint import load_checkpoint
from saccade.zoo.training.loop import train
from saccade.zoo.training.run_folder import RunFolder

ROOT = Path(__file__).parents[3]
TINY = ["train", "tiny-mirror", "--plugin", str(Path(__file__).parent / "tiny.py")]


def environment(**more):
    held = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return {**held, "OMP_NUM_THREADS": "1", **more}


def start(*words, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "saccade", *TINY, *map(str, words)],
        env=environment(**more),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps_of(lines):
    return [int(line.split()[1]) for line in lines if line.startswith("step ")]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is not known there")
def test_a_killed_training_goes_on_and_ends_in_the_same_weights(tiny_job, tmp_path, curve):
    train(tiny_job(), tmp_path / "whole")
    out, saving = ["--out", tmp_path / "run"], ["--set", "checkpoint_minutes=0"]
    with start(*out, *saving, TINY_STOP="23") as process:
        for line in process.stderr:
            if line == "step 23\n":
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert load_checkpoint(tmp_path / "run" / "checkpoint").state.step == 22
    assert not RunFolder(tmp_path / "run").metrics
    with start(*out, "--resume", TINY_STOP="none") as process:
        said, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert steps_of(err.splitlines()) == list(range(23, 52))
    assert said.startswith("tiny-mirror: right ")
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")
    found, expected = (load_checkpoint(tmp_path / f / "checkpoint") for f in ("run", "whole"))
    for part in ("weights", "optimiser"):
        for name, value in getattr(expected, part).items():
            assert torch.equal(getattr(found, part)[name], value), name
    assert torch.equal(found.random["0.torch"], expected.random["0.torch"])


def test_two_processes_give_the_weights_of_one(tiny_job, tmp_path, curve):
    """Eleven words of different lengths a batch: six and five, and never as many letters."""
    alone = {"dropout": 0.0, "rows": 11}
    train(tiny_job(sizes=alone, optimiser="sgd", learning_rate=0.5), tmp_path / "alone")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    sets = ["dropout=0", "optimiser=sgd", "learning_rate=0.5", "checkpoint_minutes=0.001"]
    words = [*TINY, "--out", str(tmp_path / "two"), *(x for s in sets for x in ("--set", s))]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", "-m", "saccade", *words],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4  # only the first process speaks
    assert "Warning" not in done.stderr
    two, one = (load_checkpoint(tmp_path / f / "checkpoint") for f in ("two", "alone"))
    for name, value in one.weights.items():
        torch.testing.assert_close(two.weights[name], value, atol=1e-5, rtol=1e-5)
    assert two.state.units == one.state.units and "1.torch" in two.random
    for mine, its in zip(curve(tmp_path / "two"), curve(tmp_path / "alone"), strict=True):
        found, expected = (line.get("validation", line) for line in (mine, its))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    manifest = RunFolder(tmp_path / "two").manifest
    assert manifest["processes"] == 2
    assert manifest["command"].startswith(
        "torchrun --nproc-per-node=2 -m saccade train tiny-mirror"
    )
