import gzip
import re
import zipfile

import pytest

from saccade.errors import TaskError
from saccade.zoo.tasks.books import read_lines, read_text, read_zip
from saccade.zoo.tasks.multi30k import read_parallel


def test_a_plain_file_and_its_packed_twin_read_the_same(tmp_path):
    (tmp_path / "a.txt").write_text("Größe\nzwei\n", encoding="utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("Größe\nzwei\n".encode()))
    assert read_lines(tmp_path / "a.txt") == read_lines(tmp_path / "b.txt") == ["Größe", "zwei"]


def test_lines_end_at_line_feeds_only(tmp_path):
    (tmp_path / "a").write_bytes("\ufeffone\u2028still one\r\ntwo\x85\n\nfour".encode())
    assert read_lines(tmp_path / "a") == ["one\u2028still one", "two\x85", "", "four"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"text\0more", "is no text: a NUL byte at byte 4"),
        (b"caf\xe9 noir", "is no text: no UTF-8 (invalid continuation byte) at byte 3"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, data, words):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(TaskError, match=re.escape(words)):
        read_text(tmp_path / "a")


def test_a_broken_archive_is_refused(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"text" * 99)[:-9])
    with pytest.raises(TaskError, match=r"a\.gz is a broken archive"):
        read_text(tmp_path / "a")
    (tmp_path / "b.zip").write_bytes(b"PK no zip")
    with pytest.raises(TaskError, match=r"b\.zip is a broken archive"):
        read_zip(tmp_path / "b.zip", "*")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(TaskError, match=r"could not read .*none: no such file"):
        read_text(tmp_path / "none")
    with pytest.raises(TaskError, match="is a folder, not a file"):
        read_text(tmp_path)


def test_files_of_a_zip_are_chosen_by_their_names(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("x/b.mrg", "x/a.mrg", "x/README", "__MACOSX/x/._a.mrg"):
            archive.writestr(name, b"\0" if "MACOSX" in name else name)
    found = read_zip(tmp_path / "a.zip", "*.mrg")
    assert list(found.items()) == [("x/a.mrg", "x/a.mrg"), ("x/b.mrg", "x/b.mrg")]
    with pytest.raises(TaskError, match="holds no file named like"):
        read_zip(tmp_path / "a.zip", "*.txt")


def written(folder, source, target):
    (folder / "s").write_text(source)
    (folder / "t").write_text(target)
    return folder / "s", folder / "t"


def test_aligned_files_are_read_line_by_line(tmp_path):
    pairs = read_parallel(*written(tmp_path, "eins\nzwei\n", "one\ntwo"))
    assert pairs == (["eins", "zwei"], ["one", "two"])


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("a\nb\nc\n", "a\nb\n", r"/s has 3 lines and .*/t has 2"),
        ("", "", "holds no sentence"),
        ("a\n \nc\n", "a\nb\nc\n", "/s line 2 is empty"),
        ("a\nb\n", "a\n\n", "/t line 2 is empty"),
    ],
)
def test_files_that_are_not_aligned_are_refused(tmp_path, source, target, words):
    with pytest.raises(TaskError, match=words) as caught:
        read_parallel(*written(tmp_path, source, target))
    assert caught.value.hint
