"""A fit in processes of its own: killed and started again, and shared by several.

What is judged is the command itself; it must end in what a fit in one go and one process gives.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from saccade.lenses.collection import load_lenses
from saccade.lenses.fit import fit_lenses
from saccade.lenses.fit_config import FitConfig

ROOT = Path(__file__).parent.parent.parent
CONFIG = FitConfig(tokens=1600, window=31, rows=3, method="polish", steps=3)
BATCHES = 17
# The command, with every batch named as it is read, no wait between saves, a stop to kill it at.
DRIVER = """
import sys, time
from saccade.cli.main import main
from saccade.lenses import batches, checkpoint

checkpoint.EVERY_SECONDS = checkpoint.PAUSE_OVER_WRITING = 0
stop, read = int(sys.argv[1]), batches.CorpusBatches.read

def slowly(self, index):
    print("batch", index, file=sys.stderr, flush=True)
    time.sleep(60 if index == stop else 0)
    return read(self, index)

batches.CorpusBatches.read = slowly
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def in_one_go(stories, story_file, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SACCADE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return fit_lenses(stories, story_file, CONFIG)


@pytest.fixture
def command(stories, story_file, tmp_path):
    """The words of `saccade lens fit` for the same fit, and where it puts the lenses."""
    settings = {"tokens": 1600, "window": 31, "rows": 3, "method": "polish", "steps": 3}
    given = {"corpus": story_file, "model": stories.name, "out": tmp_path / "lens", **settings}
    return ["lens", "fit", *(str(x) for k, v in given.items() for x in (f"--{k}", v))]


def environment(cache):
    return {**os.environ, "SACCADE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}


def start(driver, stop, command, cache):
    return subprocess.Popen(
        [sys.executable, str(driver), str(stop), *command],
        env=environment(cache),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def batches_of(lines):
    return [int(line.split()[1]) for line in lines if line.startswith("batch ")]


def test_a_killed_fit_goes_on_and_ends_in_the_same_lenses(stories, command, in_one_go, tmp_path):
    (driver := tmp_path / "driver.py").write_text(DRIVER)
    cache = tmp_path / "cache"
    with start(driver, 6, command, cache) as process:
        read = []
        for line in process.stderr:
            read += batches_of([line])
            if read and read[-1] == 6:
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert not (tmp_path / "lens").exists()
    assert list((cache / "unfinished").iterdir())
    with start(driver, -1, command, cache) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    # Batches 0 to 5 were kept; the one that was being read is read again.
    assert batches_of(err.splitlines()) == list(range(6, BATCHES))
    assert out.splitlines()[0].startswith("40 head lenses for")
    assert not list((cache / "unfinished").iterdir())
    resumed = load_lenses(tmp_path / "lens", stories)
    for name, total in in_one_go.statistics.sums.items():
        assert torch.equal(resumed.statistics.sums[name], total), name
    for layer, lens in in_one_go.by_layer.items():
        for name, value in lens.state_dict().items():
            assert torch.equal(resumed.by_layer[layer].state_dict()[name], value)
    assert resumed.quality == in_one_go.quality


def test_two_processes_give_the_lenses_of_one(stories, command, in_one_go, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", "-m", "saccade", *command],
        env=environment(tmp_path / "cache"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4  # only the first process speaks
    shared = load_lenses(tmp_path / "lens", stories)

    def assert_near(found, expected, name):
        size = float(expected.abs().max())
        assert float((found - expected).abs().max()) <= 1e-5 * size, name

    assert shared.statistics.n == in_one_go.statistics.n
    for name, total in in_one_go.statistics.sums.items():
        assert_near(shared.statistics.sums[name], total, name)
    assert_near(shared.constant, in_one_go.constant, "constant")
    for layer, lens in in_one_go.by_layer.items():
        for name, value in lens.state_dict().items():
            assert_near(shared.by_layer[layer].state_dict()[name], value, f"{layer}.{name}")
