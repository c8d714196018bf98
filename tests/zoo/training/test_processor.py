"""Freed memory stays with the process, measured by page faults; models that exceed memory."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from saccade.errors import TrainingError, UsageError
from saccade.zoo.training import optim
from saccade.zoo.training.run_state import device_of

PROGRAM = """
import resource, sys
import torch
from saccade.zoo.training import optim
from saccade.zoo.training.optim import prepare_for_long_work
if sys.argv[1] == "prepared":
    prepare_for_long_work()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def faults_of_a_piece():
    before = faults()
    torch.ones(20_000_000).sum()
    return faults() - before
def mapped():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = mapped() if sys.platform == "linux" else 0
# The heap may grow a few more times before it reuses memory, so the minimum counts.
faults = min(faults_of_a_piece() for _ in range(16))
grown = mapped() - before if sys.platform == "linux" else 0
print(faults, grown, bool(torch.tensor(1e-39) * 1 > 0))
"""


def _run(how: str) -> tuple[int, int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True
    )
    faults, grown, keeps_small = done.stdout.split()
    return int(faults), int(grown), keeps_small


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_not_brought_again_and_tiny_numbers_are_zero() -> None:
    plain, prepared = _run("plain"), _run("prepared")
    assert plain[2] == "True"
    assert prepared[2] == "False"
    assert prepared[0] * 20 < plain[0]
    # The heap grows by what is used, 80 MB at a time, and not by a padding (mallopt has one, too).
    assert prepared[1] < 1e9


def test_weights_without_a_bias_are_counted(monkeypatch):
    monkeypatch.setattr(optim, "memory_bytes", lambda: 7 * 11 * 4)
    with optim.within_memory(copies=1):
        nn.Linear(7, 11, bias=False)
    refused = pytest.raises(TrainingError, match="not enough memory")
    with refused, optim.within_memory(copies=1):
        nn.Linear(7, 13, bias=False)


@pytest.mark.parametrize(("name", "is_there"), [("cuda:0", True), ("cuda:1", False)])
def test_a_gpu_is_taken_only_if_torch_finds_it(monkeypatch, name, is_there):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    if is_there:
        assert device_of(name) == torch.device("cuda", 0)
        return
    with pytest.raises(UsageError, match="there is no device cuda:1: torch finds 1 GPUs here"):
        device_of(name)


def test_a_model_that_memory_cannot_hold_is_refused_before_it_is_filled(monkeypatch):
    monkeypatch.setattr(optim, "memory_bytes", lambda: 3_000_000_000)
    filled = []

    def fill(self):
        filled.append(self)

    monkeypatch.setattr(nn.Linear, "reset_parameters", fill)
    with (
        pytest.raises(
            TrainingError,
            match=r"^not enough memory: the weights up to 'weight' alone take 6.4 GB, "
            r"this machine has 3.0 GB$",
        ) as refused,
        optim.within_memory(copies=4),
    ):
        nn.Linear(20_000, 20_000)
    assert not filled and "smaller widths" in refused.value.hint
    with optim.within_memory(copies=1):
        nn.Linear(20_000, 20_000)
    nn.Linear(40_000, 30_000)  # outside the block nothing is counted
    assert len(filled) == 2


@pytest.mark.parametrize(
    ("shape", "words"),
    [((10**13,), "takes 40,000.0 GB"), ((2**40, 2**40), "takes more than can be allocated")],
)
def test_a_tensor_that_memory_cannot_hold_is_told_in_one_line(shape, words):
    with (
        pytest.raises(TrainingError, match=f"not enough memory: one tensor alone {words}"),
        optim.within_memory(copies=1),
    ):
        torch.empty(shape)


def test_other_errors_pass_and_the_memory_is_what_the_system_says():
    with pytest.raises(RuntimeError, match="size"), optim.within_memory(copies=1):
        torch.ones(2) @ torch.ones(3)
    if sys.platform != "linux":
        return
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) * 1024
    assert 0 < optim.memory_bytes() <= total
