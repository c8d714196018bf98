import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from saccade.errors import StoreError
from saccade.store import atomic
from saccade.store.atomic import atomic_file, atomic_folder, is_temporary, settled_folder

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


@pytest.fixture(params=["exchange", "two steps"])
def way(request, monkeypatch) -> str:
    """Both ways to replace a folder, whatever the file system under the tests can do."""
    if request.param == "two steps":
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    return request.param


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
        # On the same disk, or the rename would not be atomic; named alike, as writers look at it.
        assert temporary.stat().st_dev == file.stat().st_dev
        assert temporary.name == file.name
        assert temporary.parent.parent == file.parent
    assert file.read_text() == NEW
    assert os.listdir(file.parent) == [file.name]


def test_a_folder_is_replaced_and_nothing_else_is_left(folder, way):
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
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
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


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".json"])
def test_a_name_that_is_too_long_is_told_in_one_line_before_anything_is_written(tmp_path, name):
    began = []
    for write in (atomic_file, atomic_folder):
        words = r"could not write .*: file name too long"
        with pytest.raises(StoreError, match=words) as caught, write(tmp_path / name):
            began.append(write)
        assert caught.value.hint == "choose a shorter name"
    assert not began
    assert os.listdir(tmp_path) == []


def test_the_longest_name_that_the_disk_takes_is_written(tmp_path):
    target = tmp_path / ("x" * 250 + ".txt")
    for text in (OLD, NEW):
        with atomic_file(target) as temporary:
            temporary.write_text(text)
    assert target.read_text() == NEW
    rewrite(tmp_path / ("y" * 250))
    assert os.listdir(tmp_path / ("y" * 250)) == ["note.txt"]


def test_a_cache_that_is_a_file_is_told_in_one_line_with_a_way_out(file):
    for path in (file / "lens", file / "lenses" / "lens"):
        for write in (atomic_file, atomic_folder):
            words = r"could not write .*/lens: (file exists|not a directory)"
            with pytest.raises(StoreError, match=words) as caught, write(path):
                pass
            assert "a file exists where a folder is needed" in caught.value.hint
            assert "SACCADE_CACHE" in caught.value.hint
    assert file.read_text() == OLD


@pytest.mark.parametrize("call", ["mkdir", "open", "replace"])
def test_a_read_only_place_is_told_in_one_line_with_a_way_out(file, monkeypatch, call):
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # Permissions do not bind the superuser, so the system call itself says no.
    with monkeypatch.context() as patched:
        patched.setattr(os, call, read_only)
        words = r"could not write .*: read-only file system"
        with pytest.raises(StoreError, match=words) as caught, atomic_file(file) as temporary:
            shutil.copyfile(__file__, temporary)
    assert "SACCADE_CACHE" in caught.value.hint
    assert file.read_text() == OLD


def test_neither_a_pipe_nor_a_folder_is_replaced_by_a_file(tmp_path, folder):
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path / "pipe", "device or pipe"), (folder, "folder")):
        words = f"expected a file or nothing there, found a {what}"
        with pytest.raises(StoreError, match=words), atomic_file(path):
            pass
    assert (tmp_path / "pipe").is_fifo() and (folder / "note.txt").read_text() == OLD


WRITES_SLOWLY = """
import sys
from saccade.store.atomic import atomic_folder
with atomic_folder(sys.argv[1]) as temporary:
    (temporary / "note.txt").write_text("new")
    print("here", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def writing_elsewhere(target: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that is in the middle of a write until the block ends."""
    command = [sys.executable, "-c", WRITES_SLOWLY, str(target)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "here\n"
        yield process
        process.communicate("go on\n")


def leftover_of_a_killed_process(target: Path) -> Path:
    """Begins a write in another process, kills it, and gives what it left."""
    with writing_elsewhere(target) as process:
        process.send_signal(signal.SIGKILL)
    (found,) = [path for path in target.parent.iterdir() if is_temporary(path)]
    return found


def test_what_a_killed_process_left_is_removed_by_the_next_write_of_anything_beside_it(tmp_path):
    left = leftover_of_a_killed_process(tmp_path / "lens")
    assert (left / "lens" / "note.txt").read_text() == NEW
    with atomic_file(tmp_path / "note.txt") as temporary:
        temporary.write_text(NEW)
    assert os.listdir(tmp_path) == ["note.txt"]


def test_what_a_living_process_is_writing_is_never_removed(tmp_path):
    long_ago = time.time() - 10 * atomic._LEFTOVER_SECONDS
    with writing_elsewhere(tmp_path / "lens"):
        (hidden,) = tmp_path.iterdir()
        os.utime(hidden, (long_ago, long_ago))
        for name in ("lens", "other"):
            rewrite(tmp_path / name)
        assert (hidden / "lens" / "note.txt").exists()
    assert sorted(os.listdir(tmp_path)) == ["lens", "other"]  # it has come to its end as usual


def test_where_there_are_no_locks_only_old_leftovers_are_removed(tmp_path, monkeypatch):
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    old, young = (tmp_path / f".{token}.partial" for token in ("0123abcd", "4567cdef"))
    for leftover in (old, young):
        leftover.mkdir()
    long_ago = time.time() - atomic._LEFTOVER_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    monkeypatch.setattr("saccade.store.atomic.fcntl.flock", none)
    rewrite(tmp_path / "lens")
    assert [leftover.exists() for leftover in (old, young)] == [False, True]


def test_leftovers_of_the_time_before_locks_are_removed_when_they_are_old(folder):
    names = [".lens.0123abcd.partial", ".000000006.89abcdef.partial.safetensors"]
    old = [folder.with_name(name) for name in names]
    young = folder.with_name(".lens.4567cdef.partial")
    own = folder.with_name(".my.partial")
    for leftover in (*old, young, own):
        leftover.write_text("half")
    long_ago = time.time() - atomic._LEFTOVER_SECONDS - 60
    for leftover in (*old, own):
        os.utime(leftover, (long_ago, long_ago))
    rewrite(folder)
    assert [each.exists() for each in (*old, young, own)] == [False, False, True, True]


# Kills a process before the first, the second, ... thing that it asks of the file system, each time
# from the same start, until it comes to its end. Forked from here, where no torch is loaded, each
# takes milliseconds.
KILLS = """
import json, os, shutil, signal, sys
from pathlib import Path
from saccade.store import atomic

root, kind, way, there = Path(sys.argv[1]), *sys.argv[2:]
target = root / "lens.txt"
if way == "two steps":
    atomic._exchange = lambda *_: False
is_folder = kind == "folder"
ASKED = {"open", "fcntl.flock"}

def note(path):
    return path / "note.txt" if is_folder else path

def write(text):
    with (atomic.atomic_folder if is_folder else atomic.atomic_file)(target) as temporary:
        note(temporary).write_text(text)

def killed_at(step):
    count = 0
    def hook(event, arguments):
        nonlocal count
        if event.startswith(("os.", "shutil.")) or event in ASKED:
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
    if (child := os.fork()) == 0:
        sys.addaudithook(hook)
        write("new")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

found = []
for step in range(1, 200):
    shutil.rmtree(root)
    root.mkdir()
    if there == "there":
        write("old")
    code = killed_at(step)
    settled = note(atomic.settled_folder(target) if is_folder else target)
    read = settled.read_text() if settled.exists() else None
    write("newer")
    found.append([code, read, note(target).read_text(), os.listdir(root)])
    if code != -signal.SIGKILL:
        break
print(json.dumps(found))
"""


@pytest.mark.parametrize("there", ["there", "not there"])
@pytest.mark.parametrize(
    ("kind", "way"), [("file", "exchange"), ("folder", "exchange"), ("folder", "two steps")]
)
def test_kill_9_at_any_step_leaves_the_old_or_the_new_and_nothing_behind(
    tmp_path, kind, way, there
):
    (root := tmp_path / "root").mkdir()
    command = [sys.executable, "-c", KILLS, str(root), kind, way, there]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *killed, last = json.loads(done.stdout)
    assert last[:2] == [0, NEW]
    assert len(killed) > 8 and all(code == -signal.SIGKILL for code, *_ in killed)
    before = OLD if there == "there" else None
    seen = [read for _, read, *_ in killed]
    # First the old, from some step on the new, and never anything else.
    assert seen == sorted(seen, key=lambda read: read == NEW) and set(seen) == {before, NEW}
    for _, _, then, listed in (*killed, last):
        assert then == "newer" and listed == ["lens.txt"]


def test_a_folder_moved_aside_by_a_killed_process_is_found(folder, way):
    shutil.move(folder, folder.with_name(".lens.old"))
    assert (settled_folder(folder) / "note.txt").read_text() == OLD
    with pytest.raises(ValueError, match="bad"):
        rewrite(folder, then=ValueError("bad"))
    assert (settled_folder(folder) / "note.txt").read_text() == OLD
    rewrite(folder)
    assert (folder / "note.txt").read_text() == NEW
    assert os.listdir(folder.parent) == [folder.name]


@pytest.mark.parametrize("write", [atomic_file, atomic_folder])
def test_the_root_of_the_disk_is_nothing_to_write(write):
    with pytest.raises(StoreError, match="could not write /: expected a name"), write("/"):
        raise AssertionError("nothing must be prepared")
    assert settled_folder("/") == Path("/")


def test_an_error_without_a_number_is_told_by_its_words():
    told = atomic.write_refused("x.json", OSError("Odd Thing"))
    assert str(told) == "could not write x.json: odd thing (errno 0, OSError)"
    assert told.hint == "check that the location exists and is writable"


def test_a_place_that_is_taken_by_another_kind_meanwhile_is_told_in_one_line(tmp_path):
    def write_file():
        with atomic_file(tmp_path / "file") as temporary:
            temporary.write_text("new")
            (tmp_path / "file").mkdir()

    def write_folder():
        with atomic_folder(tmp_path / "folder"):
            (tmp_path / "folder").write_text("a file")

    with pytest.raises(StoreError, match=r"could not write .*/file: is a directory"):
        write_file()
    with pytest.raises(StoreError, match=r"could not write .*/folder: "):
        write_folder()
    assert (tmp_path / "folder").read_text() == "a file"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_folder_that_cannot_be_begun_is_told_in_one_line(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(StoreError, match="not a directory"), atomic_folder(tmp_path / "new"):
            pytest.fail("the body must not run")
    assert os.listdir(tmp_path) == []
