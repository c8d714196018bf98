import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saccade.errors import StoreError
from saccade.store import atomic
from saccade.store.atomic import atomic_file, atomic_folder, settled_folder

OLD, NEW = "old", "new"


@pytest.fixture
def file(tmp_path) -> Path:
    target = tmp_path / "note.txt"
    target.write_text(OLD)
    return target


@pytest.fixture
def folder(tmp_path) -> Path:
    target = tmp_path / "lens"
    target.mkdir()
    (target / "note.txt").write_text(OLD)
    return target


def rewrite_file(file: Path, *, then: BaseException) -> None:
    with atomic_file(file) as temporary:
        temporary.write_text(NEW)
        raise then


def rewrite(folder: Path, *, then: BaseException | None = None) -> None:
    with atomic_folder(folder) as temporary:
        (temporary / "note.txt").write_text(NEW)
        if then is not None:
            raise then


def test_a_file_is_replaced_and_nothing_else_is_left(file):
    with atomic_file(file) as temporary:
        temporary.write_text(NEW)
        assert file.read_text() == OLD  # still, until the block is done
        assert temporary.parent == file.parent  # a rename across disks would not be atomic
        assert temporary.suffix == file.suffix
    assert file.read_text() == NEW
    assert os.listdir(file.parent) == [file.name]


def test_a_folder_is_replaced_and_nothing_else_is_left(folder):
    (folder / "only_in_the_old_one.txt").write_text(OLD)
    rewrite(folder)
    assert os.listdir(folder) == ["note.txt"]
    assert (folder / "note.txt").read_text() == NEW
    assert os.listdir(folder.parent) == [folder.name]


def test_parents_are_made(tmp_path):
    rewrite(tmp_path / "a" / "b" / "lens")
    assert (tmp_path / "a" / "b" / "lens" / "note.txt").read_text() == NEW


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), ValueError("bad"), SystemExit(3)])
def test_an_interruption_leaves_everything_as_it_was(file, folder, raised):
    before = sorted(os.listdir(file.parent))
    with pytest.raises(type(raised)):
        rewrite_file(file, then=raised)
    with pytest.raises(type(raised)):
        rewrite(folder, then=raised)
    assert file.read_text() == (folder / "note.txt").read_text() == OLD
    assert sorted(os.listdir(file.parent)) == before


@pytest.mark.parametrize(
    ("number", "words", "hint"),
    [
        (errno.ENOSPC, "no space left on device", "free some space"),
        (errno.EROFS, "read-only file system", "choose another"),
        (errno.EACCES, "permission denied", "permission"),
    ],
)
def test_a_refusing_disk_is_named_in_one_line(folder, number, words, hint):
    with pytest.raises(StoreError, match=f"could not write .*lens: {words}") as caught:
        rewrite(folder, then=OSError(number, os.strerror(number)))
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value)
    assert (folder / "note.txt").read_text() == OLD
    assert os.listdir(folder.parent) == [folder.name]


def test_an_error_of_the_body_itself_passes_unchanged(folder):
    with pytest.raises(FileNotFoundError):
        rewrite(folder, then=FileNotFoundError(errno.ENOENT, "no such source"))


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failing_rename_puts_the_old_folder_back(folder, monkeypatch, failing):
    calls = []

    def rename(source, target, real=os.rename):
        calls.append(source)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr(atomic.os, "rename", rename)
    with pytest.raises(StoreError, match="no space left"):
        rewrite(folder)
    assert (folder / "note.txt").read_text() == OLD
    assert os.listdir(folder.parent) == [folder.name]


def test_a_file_is_not_replaced_by_a_folder(file):
    with pytest.raises(StoreError, match="expected a folder or nothing there, found a file"):
        rewrite(file)
    assert file.read_text() == OLD


def test_a_parent_that_is_a_file_is_refused(file):
    with pytest.raises(StoreError, match="could not write"):
        rewrite(file / "lens")


def test_what_a_link_points_to_is_replaced_and_the_link_stays(folder):
    link = folder.parent / "link"
    link.symlink_to(folder, target_is_directory=True)
    rewrite(link)
    assert link.is_symlink()
    assert (folder / "note.txt").read_text() == NEW


def test_old_leftovers_are_removed_and_young_ones_are_kept(folder):
    old, young = (folder.with_name(f".lens.{token}.partial") for token in ("0123abcd", "4567cdef"))
    other = folder.with_name(".lens-of-another.89abcdef.partial")
    long_ago = time.time() - atomic._LEFTOVER_SECONDS - 60
    for leftover in (old, young, other):
        leftover.mkdir()
    for leftover in (old, other):
        os.utime(leftover, (long_ago, long_ago))
    rewrite(folder)
    assert [leftover.exists() for leftover in (old, young, other)] == [False, True, True]


# Stops at a given point of the replacement and waits there to be killed.
STOPS = {
    "in the body": "",
    "before the first rename": "if str(source) == target: stop()\n",
    "between the renames": "real(source, to)\n    if str(source) == target: stop()\n    return",
    "after the second rename": "real(source, to)\n    if str(to) == target: stop()\n    return",
}
SCRIPT = """
import os, sys, time
from pathlib import Path
from saccade.store import atomic
target, real = sys.argv[1], os.rename
def stop():
    print("here", flush=True)
    time.sleep(60)
def rename(source, to):
    {at}
    real(source, to)
atomic.os.rename = rename
with atomic.atomic_folder(target) as temporary:
    (temporary / "note.txt").write_text("new")
    if {in_body}: stop()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is not known there")
@pytest.mark.parametrize("where", STOPS)
def test_kill_9_leaves_a_folder_that_can_be_read_and_written(folder, where):
    folder = Path(os.path.realpath(folder))
    script = SCRIPT.format(at=STOPS[where] or "pass", in_body=where == "in the body")
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    expected = NEW if where == "after the second rename" else OLD
    assert (settled_folder(folder) / "note.txt").read_text() == expected
    assert folder.exists() == (where != "between the renames")

    rewrite(folder)  # the next write works, and clears the folder that was moved aside
    assert (folder / "note.txt").read_text() == NEW
    assert not folder.with_name(".lens.old").exists()


def test_a_failed_write_after_a_kill_between_the_renames_still_leaves_the_old_folder(folder):
    shutil.move(folder, folder.with_name(".lens.old"))
    with pytest.raises(ValueError, match="bad"):
        rewrite(folder, then=ValueError("bad"))
    assert (settled_folder(folder) / "note.txt").read_text() == OLD
