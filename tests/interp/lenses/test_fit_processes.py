"""A fit in processes of its own: killed and started again, and shared by several.

What is judged is the command itself; it must end in what a fit in one go and one process gives.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from saccade.interp.lenses.fit import fit_lenses
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.lens_set import load_lenses

ROOT = Path(__file__).parents[3]
CONFIG = FitConfig(tokens=1600, window=31, rows=3, method="polish", steps=3)
BATCHES = 18  # each window begins with a token that is not of the text
SECONDS = 300  # on a machine that has much else to do
# The command, with every batch named as it is read, no wait between saves, and a stop: a batch in
# which it waits for a file to appear.
DRIVER = """
import sys, time
from pathlib import Path
from saccade.cli.main import main
from saccade.interp.lenses import batches, gather as checkpoint

checkpoint.EVERY_SECONDS = checkpoint.PAUSE_OVER_WRITING = 0
stop, read = int(sys.argv[1]), batches.CorpusBatches.read

def slowly(self, index):
    print("batch", index, file=sys.stderr, flush=True)
    while index == stop and not Path(__file__).with_name("go on").exists():
        time.sleep(0.01)
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
    """The tokens of `saccade lens fit` for the same fit, and where it puts the lenses."""
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


def assert_same(resumed, whole):
    """To the last bit."""
    for name, total in whole.statistics.sums.items():
        assert torch.equal(resumed.statistics.sums[name], total), name
    for layer, lens in whole.by_layer.items():
        for name, value in lens.state_dict().items():
            assert torch.equal(resumed.by_layer[layer].state_dict()[name], value)
    assert resumed.quality == whole.quality


def stopped_at(batch, driver, command, cache, number):
    """Starts the command and sends it a signal while it waits in a batch; its end and stderr."""
    with start(driver, batch, command, cache) as process:
        wait_for(batch, process)
        process.send_signal(number)
        driver.with_name("go on").touch()
        out, err = process.communicate(timeout=SECONDS)
    assert out == ""
    return process.returncode, err


def wait_for(batch, process):
    for line in process.stderr:
        if batches_of([line]) == [batch]:
            return


def test_a_killed_fit_goes_on_and_ends_in_the_same_lenses(stories, command, in_one_go, tmp_path):
    (driver := tmp_path / "driver.py").write_text(DRIVER)
    cache = tmp_path / "cache"
    assert stopped_at(6, driver, command, cache, signal.SIGKILL)[0] == -signal.SIGKILL
    assert not (tmp_path / "lens").exists()
    assert list((cache / "unfinished").iterdir())
    with start(driver, -1, command, cache) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    # Batches 0 to 5 were kept; the one that was being read is read again.
    assert batches_of(err.splitlines()) == list(range(6, BATCHES))
    assert out.splitlines()[0].startswith("40 head lenses for")
    assert not list((cache / "unfinished").iterdir())
    assert_same(load_lenses(tmp_path / "lens", stories), in_one_go)


def test_ctrl_c_keeps_what_was_read_and_the_same_command_ends_in_the_same_lenses(
    stories, command, in_one_go, tmp_path
):
    # With the long pause between two checkpoints that users have.
    pause = "checkpoint.EVERY_SECONDS = checkpoint.PAUSE_OVER_WRITING = 0"
    (driver := tmp_path / "driver.py").write_text(DRIVER.replace(pause, ""))
    cache = tmp_path / "cache"
    code, err = stopped_at(6, driver, command, cache, signal.SIGINT)
    lines = [line for line in err.splitlines() if line and not line.startswith("batch")]
    assert (code, lines) == (130, ["the fit is saved; the same command resumes it", "interrupted"])
    assert not (tmp_path / "lens").exists()
    with start(driver, -1, command, cache) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    # The batch that was being read was read to its end, and none is read twice.
    assert batches_of(err.splitlines()) == list(range(7, BATCHES))
    assert not list((cache / "unfinished").iterdir())
    assert_same(load_lenses(tmp_path / "lens", stories), in_one_go)


def test_a_fit_whose_checkpoint_was_damaged_ends_in_the_same_lenses(
    stories, command, in_one_go, tmp_path
):
    (driver := tmp_path / "driver.py").write_text(DRIVER)
    cache = tmp_path / "cache"
    assert stopped_at(6, driver, command, cache, signal.SIGKILL)[0] == -signal.SIGKILL
    (state,) = (cache / "unfinished").rglob("state.safetensors")
    damaged = bytearray(state.read_bytes())
    damaged[random.Random(7).randrange(len(damaged) // 2, len(damaged))] ^= 64  # in a sum
    state.write_bytes(damaged)
    with start(driver, -1, command, cache) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert batches_of(err.splitlines()) == list(range(BATCHES))  # it has begun again
    assert_same(load_lenses(tmp_path / "lens", stories), in_one_go)


def test_two_same_fits_at_once_both_end_in_the_same_lenses(stories, command, in_one_go, tmp_path):
    (driver := tmp_path / "driver.py").write_text(DRIVER)
    cache = tmp_path / "cache"
    with start(driver, 6, command, cache) as first:
        wait_for(6, first)
        with start(driver, -1, command, cache) as second:
            _, err = second.communicate(timeout=SECONDS)
        assert second.returncode == 0, err
        assert batches_of(err.splitlines()) == list(range(BATCHES))
        assert_same(load_lenses(tmp_path / "lens", stories), in_one_go)
        (tmp_path / "go on").touch()
        _, err = first.communicate(timeout=SECONDS)
    assert first.returncode == 0, err
    assert not list((cache / "unfinished").iterdir())
    assert_same(load_lenses(tmp_path / "lens", stories), in_one_go)


def test_two_processes_give_the_lenses_of_one(stories, command, in_one_go, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", "-m", "saccade", *command],
        env=environment(tmp_path / "cache"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
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
    assert_near(shared.baseline, in_one_go.baseline, "baseline")
    for layer, lens in in_one_go.by_layer.items():
        for name, value in lens.state_dict().items():
            assert_near(shared.by_layer[layer].state_dict()[name], value, f"{layer}.{name}")
