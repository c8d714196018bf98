"""Text from stdin and from files: decoded, bounded, and never waited for."""

import io
import os
import sys
import threading

import pytest

from saccade.cli.text_input import MOST_PROMPT, read_text, stdin_lines
from saccade.errors import UsageError


@pytest.fixture
def stdin(monkeypatch):
    def give(content: bytes) -> None:
        # As in a C locale, where Python itself would let any byte pass.
        wrapped = io.TextIOWrapper(io.BytesIO(content), "ascii", errors="surrogateescape")
        monkeypatch.setattr(sys, "stdin", wrapped)

    return give


def test_text_is_utf8_whatever_the_locale_without_its_mark_and_with_plain_line_ends(stdin):
    stdin("\ufeffä\r\nb\rc".encode())
    assert read_text("-", what="the text") == "ä\nb\nc"
    stdin("\ufeffä\nb".encode())
    assert list(stdin_lines()) == ["ä\n", "b"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"ab\xe9", "expected UTF-8 text, found byte 0xe9 (unexpected end of data) at byte 2"),
        (b"a\0b", "expected UTF-8 text, found a NUL byte at byte 1"),
        (b"\xed\xa0\xbd", "found byte 0xed"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(stdin, tmp_path, content, found):
    (path := tmp_path / "a.txt").write_bytes(content)
    stdin(content)
    for source in ("-", str(path)):
        with pytest.raises(UsageError) as refused:
            read_text(source, what="the text")
        assert found in str(refused.value)
    stdin(b"good\n" + content)
    lines = stdin_lines()
    assert next(lines) == "good\n"
    with pytest.raises(UsageError, match="line 2 of stdin"):
        next(lines)


def test_more_than_any_prompt_is_refused(stdin):
    stdin(b"a" * (MOST_PROMPT + 1))
    with pytest.raises(UsageError, match="expected at most 1 MB"):
        read_text("-", what="the text")
    stdin(b"a" * (MOST_PROMPT + 1))
    with pytest.raises(UsageError, match="line 1 of stdin: expected at most 1 MB"):
        list(stdin_lines())


def test_a_device_is_no_text():
    with pytest.raises(UsageError, match="it is a folder or a device, not a file"):
        read_text("/dev/zero", what="the text")


def test_a_pipe_is_read_if_something_writes_to_it_and_refused_if_not(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="a pipe that nothing writes to"):
        read_text(str(path), what="prompts")
    reader, writer = os.pipe()  # what the shell gives for <(...)
    thread = threading.Timer(0.2, lambda: (os.write(writer, b"late"), os.close(writer)))
    thread.start()
    assert read_text(f"/dev/fd/{reader}", what="prompts") == "late"
    thread.join()
    os.close(reader)


def test_what_cannot_be_opened_is_named_with_the_reason(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read prompts from \S*nowhere: No such file"):
        read_text(str(tmp_path / "nowhere"), what="prompts")
    with pytest.raises(UsageError, match="Is a directory"):
        read_text(str(tmp_path), what="prompts")


def test_a_name_that_no_file_can_have_is_refused():
    for name in ("a" * 5000, "a\0b"):
        with pytest.raises(UsageError, match="cannot read prompts"):
            read_text(name, what="prompts")


@pytest.mark.parametrize(
    "command",
    [
        ("read", "-"),
        ("guard", "fit", "-"),
        ("find-bias", "--prompts", "-"),
        ("view", "--print", "model", "--ask", "-"),
    ],
    ids=" ".join,
)
def test_binary_data_on_stdin_is_refused_in_a_line(saccade, told_in_a_line, stdin, command):
    stdin(bytes(range(128, 256)))
    code, _, err = saccade(*command, "--model", "nowhere/nothing/here")
    assert code == 2 and "expected UTF-8 text, found byte 0x80" in told_in_a_line(err)
