"""The command line as a whole: help, version, errors and their exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def saccade(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "saccade", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        **options,
    )


def every_command():
    from saccade.cli import main

    groups = {
        (): main.COMMANDS,
        ("lens",): main.LENS_COMMANDS,
        ("heads",): main.HEADS_COMMANDS,
        ("guard",): main.GUARD_COMMANDS,
        ("data",): main.DATA_COMMANDS,
    }
    return [
        ([*group, name], module)
        for group, commands in groups.items()
        for name, module in commands.items()
    ]


def test_every_help_ends_with_two_examples_that_can_be_pasted(capsys, monkeypatch):
    from saccade.cli.main import main

    monkeypatch.setenv("COLUMNS", "120")
    commands = every_command()
    assert ["read"] in [name for name, _ in commands]
    for name, module in commands:
        assert main([*name, "--help"]) == 0
        shown = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
        lines = [line for line in module.examples.splitlines() if line]
        assert len(lines) == 2
        assert shown[-2:] == lines
        assert all(f"saccade {' '.join(name)}" in line for line in lines)


def test_help_of_the_whole_lists_the_commands(capsys):
    from saccade.cli.main import main

    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("read", "model", "--debug", "--version"))
    assert main([]) == 2
    assert "Usage" in "".join(capsys.readouterr())


def test_the_version_is_the_packages(capsys):
    import saccade
    from saccade.cli.main import main

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"saccade {saccade.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["raed"], "No such command 'raed'"),
        (["read"], "Missing argument"),
        (["read", "a", "--colour"], "No such option"),
        (["read", "a", "--by", "size"], "'size' is not one of 'says', 'contributes', 'quality'"),
        (["read", "a", "--layer", "x"], "Invalid value for '--layer'"),
    ],
)
def test_misuse_is_one_line_and_a_hint(arguments, words, capsys):
    from saccade.cli.main import main

    assert main(arguments) == 2
    captured = capsys.readouterr()
    error, hint = captured.err.strip().splitlines()
    assert captured.out == ""
    assert error.startswith("error: ") and words in error
    assert hint.startswith("hint: `saccade") and "--help` shows what it takes" in hint


def failing(error):
    def run(*_, **__):
        raise error

    return run


def test_an_error_is_a_line_and_a_hint_and_debug_shows_the_traceback(capsys, monkeypatch):
    from saccade.cli.main import main
    from saccade.errors import ModelError
    from saccade.interp.heads import model as heads

    monkeypatch.setattr(heads, "open_model", failing(ModelError("no such thing", hint="look")))
    assert main(["model", "x"]) == 1
    assert capsys.readouterr().err == "error: no such thing\nhint: look\n"
    for arguments in (["--debug", "model", "x"], ["model", "x", "--debug"]):
        with pytest.raises(ModelError):
            main(arguments)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(36, "File name too long", "x" * 5000), "error: File name too long: xxx"),
        (MemoryError(), "error: there is not enough memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), "not enough memory"),
        (TypeError("a\nb \x1b[31m"), "error: internal error: TypeError: a\\nb \\x1b[31m"),
        (RecursionError("deep"), "error: internal error: RecursionError: deep"),
    ],
)
def test_what_nobody_foresaw_is_one_line_and_debug_shows_the_traceback(
    capsys, monkeypatch, error, words
):
    from saccade.cli.main import main
    from saccade.interp.heads import model as heads

    monkeypatch.setattr(heads, "open_model", failing(error))
    assert main(["model", "x"]) == 1
    line, hint = capsys.readouterr().err.splitlines()
    assert words in line and len(line) < 1100 and hint.startswith("hint: ")
    with pytest.raises(type(error)):
        main(["model", "x", "--debug"])


def test_a_token_that_stdout_has_no_bytes_for_is_printed_as_an_escape():
    script = (
        "import sys; from saccade.cli import main; main._command = lambda: "
        "lambda *_, **__: print('\\ud800 \\xe4'); sys.exit(main.main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"\\ud800 \xc3\xa4\n"


def test_an_interrupt_is_one_line_and_130(capsys, monkeypatch):
    from saccade.cli.main import main
    from saccade.interp.heads import model as heads

    monkeypatch.setattr(heads, "open_model", failing(KeyboardInterrupt()))
    assert main(["model", "x"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_has_gone_away_is_no_error():
    script = f"{sys.executable} -m saccade --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_a_process_exits_with_the_code_and_keeps_stdout_clean(tmp_path):
    done = saccade("model", str(tmp_path), env={**os.environ, "SACCADE_CACHE": str(tmp_path)})
    assert done.returncode == 1 and done.stdout == ""
    error, hint = done.stderr.strip().splitlines()
    assert error == f"error: {tmp_path} is not a model: the folder has no config.json"
    assert hint.startswith("hint: give the folder that holds config.json")
