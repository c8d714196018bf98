"""Memory stays with the process: counted by the pages that the system has to bring again."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from saccade.processor import prepare_for_long_work
if sys.argv[1] == "prepared":
    prepare_for_long_work()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def faults_of_a_piece():
    before = faults()
    torch.ones(20_000_000).sum()
    return faults() - before
# The heap may grow a few times more before a piece lies where the last one was: the least counts.
print(min(faults_of_a_piece() for _ in range(16)), bool(torch.tensor(1e-39) * 1 > 0))
"""


def _run(how: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True
    )
    faults, keeps_small = done.stdout.split()
    return int(faults), keeps_small


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_not_brought_again_and_tiny_numbers_are_zero() -> None:
    plain, prepared = _run("plain"), _run("prepared")
    assert plain[1] == "True"
    assert prepared[1] == "False"
    assert prepared[0] * 20 < plain[0]
