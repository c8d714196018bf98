"""The command line as a whole: help, version, errors and their exit codes."""

import itertools
import os
import re
import shlex
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


def everything():
    """Every command and group by its words, as typer makes it: the whole is the empty name."""
    from typer.main import get_command

    from saccade.cli.main import app

    def walk(command, words):
        yield words, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    return dict(walk(get_command(app), ()))


def examples_of(words, capsys):
    """What stands at the end of a help, behind `Examples:`."""
    from saccade.cli.main import main

    assert main([*words, "--help"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    return shown[shown.index("Examples:") + 1 :] if "Examples:" in shown else []


def problem_of(commands, line):
    """What a command says of a line in its parser, without running it; nothing if it is well."""
    from saccade.cli.main import CommandLineError

    words = shlex.split(re.split(r" [<|] ", line)[0])
    words = tuple(words[words.index("saccade") + 1 :])
    name = next(words[:n] for n in range(len(words), -1, -1) if words[:n] in commands)
    if hasattr(commands[name], "commands"):
        return "no such command"
    try:
        commands[name].make_context(" ".join(name), list(words[len(name) :]))
    except CommandLineError as error:
        return str(error)
    return ""


def test_every_help_ends_with_two_examples_that_can_be_pasted(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    commands, wrong = everything(), {}
    assert {("read",), ("heads", "rank"), ("guard",), ("lens", "fit"), ()} <= {*commands}
    for words in commands:
        found = examples_of(words, capsys)
        start = " ".join(["saccade", *words])
        if len(found) != 2 or not all(start in line for line in found):
            wrong[start] = found
            continue
        wrong |= {line: told for line in found if (told := problem_of(commands, line))}
    assert not wrong


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("saccade heads rank a --token b", ""),
        ("torchrun --nproc-per-node=2 -m saccade read - --json < prompts.txt", ""),
        ("saccade heads rank a --token b --for c", "No such option"),
        ("saccade heads rank a", "Missing"),
        ("saccade hedas rank a", "no such command"),
    ],
)
def test_the_test_of_examples_notices_what_a_command_does_not_take(line, told):
    found = problem_of(everything(), line)
    assert told in found and bool(told) == bool(found)


def test_help_of_the_whole_lists_every_command_once_in_its_panel(capsys, monkeypatch):
    from saccade.cli.main import COMMANDS, GROUPS, PANELS, main

    monkeypatch.setenv("COLUMNS", "120")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "--debug" in shown and "--version" in shown
    _, *panels = re.split(rf"─ ({'|'.join(PANELS)}) ─", shown)
    listed = [re.findall(r"^│ ([a-z-]+) ", part, re.MULTILINE) for part in panels[1::2]]
    assert panels[::2] == [*PANELS] and listed == [list(names) for names in PANELS.values()]
    assert sorted(itertools.chain(*listed)) == sorted([*COMMANDS, *GROUPS])
    assert main([]) == 2
    assert "Usage" in "".join(capsys.readouterr())


def test_commands_that_only_maintainers_use_are_no_commands(capsys):
    from saccade.cli.main import main

    for name in ("results", "gallery", "lengths", "systems"):
        assert main([name]) == 2
        assert f"No such command '{name}'" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys):
    import saccade
    from saccade.cli.main import main

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"saccade {saccade.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["raed"], "No such command 'raed'"),
        (["generate"], "Missing argument"),
        (["read", "a", "--colour"], "No such option"),
        (
            ["read", "a", "--by", "size"],
            "'size' is not one of 'effect', 'token', 'direct', 'lens', 'quality'",
        ),
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
        "import sys; from saccade.cli import main; main._command = lambda app: "
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
