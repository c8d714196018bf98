"""Locks between processes: held by one at a time, and released however their holder ends."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from saccade.store import atomic as lock
from saccade.store.atomic import Hold, locked

HOLDS = """
import sys
from pathlib import Path
from saccade.store.atomic import locked
with locked(Path(sys.argv[1])) as hold:
    print(hold.name, flush=True)
    sys.stdin.readline()
"""
# Several processes take a lock, count up a file while they have it, and remove the lock file.
COUNTS = """
import os, sys
from pathlib import Path
from saccade.store.atomic import locked
root = Path(sys.argv[1])
count = root / "count"
count.write_text("0")
children = []
for _ in range(4):
    if (child := os.fork()) == 0:
        for _ in range(100):
            with locked(root / "lock", wait=True):
                before = int(count.read_text())
                os.sched_yield()
                count.write_text(str(before + 1))
                (root / "lock").unlink()
        os._exit(0)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def test_a_lock_is_anothers_until_its_holder_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "MINE\n"
        with locked(tmp_path / "lock") as hold:
            assert hold is Hold.TAKEN
        process.send_signal(signal.SIGKILL)
    with locked(tmp_path / "lock") as hold:
        assert hold is Hold.MINE


def test_a_lock_whose_file_its_holders_remove_is_still_held_by_one_at_a_time(tmp_path):
    command = [sys.executable, "-c", COUNTS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "count").read_text() == "400"
    assert os.listdir(tmp_path) == ["count"]


def test_a_failing_block_releases_the_lock(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "lock"):
        raise KeyboardInterrupt
    with locked(tmp_path / "lock") as hold:
        assert hold is Hold.MINE


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_from_a_lock_that_is_taken(
    tmp_path, monkeypatch, number
):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with locked(tmp_path / "lock", wait=True) as hold:
        assert hold is Hold.UNKNOWN


def test_a_place_where_no_file_can_be_made_is_the_callers_affair(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "absent" / "lock"):
        pass
