"""Every option of every command with values nobody should give: one line and a hint, no traceback.

The values follow from the declared type of each option (`fuzz_cases.py`); each case runs in a
process of its own (`fuzz_worker.py`). By default a fixed sample of the cases is run that touches
every option; `SACCADE_FUZZ=full` runs all of them, and `SACCADE_FUZZ=read` those of one command.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_cases import BASES, Case, cases, chosen, commands, parameters

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched by /proc")
SAMPLE = 520  # cases; every option of every command is touched
ERROR_LENGTH = 2000  # characters of a line that a person still reads
# Cases that fail today, by what mends them: a pattern of names, and whose file it is. Each is
# expected to fail; one that passes has to be taken out.
KNOWN: dict[str, str] = {}


def selected() -> list[Case]:
    every = list(cases())
    asked = os.environ.get("SACCADE_FUZZ", "")
    if asked == "full":
        return every
    return [case for case in every if case.command == asked] or chosen(every, SAMPLE)


def marked(case: Case) -> object:
    owner = next((who for pattern, who in KNOWN.items() if re.fullmatch(pattern, case.name)), None)
    marks = [] if owner is None else [pytest.mark.xfail(strict=True, reason=owner)]
    return pytest.param(case, id=case.name, marks=marks)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a case in the worker, which builds a model and all else first."""
    folder = tmp_path_factory.mktemp("fuzz")
    log = folder / "worker.log"
    with log.open("w") as err:
        worker = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "fuzz_worker.py"), str(folder / "work")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert worker.stdin is not None and worker.stdout is not None

    def ask(case: Case) -> dict:
        asked = {"arguments": case.arguments, "stdin": list(case.stdin), "times": case.times}
        worker.stdin.write(json.dumps(asked) + "\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())

    assert "made" in (worker.stdout.readline() or "nothing"), log.read_text()
    yield ask
    worker.stdin.close()
    assert worker.wait(timeout=60) == 0
    worker.stdout.close()


def test_every_command_has_a_line_that_works():
    assert set(BASES) == set(commands())
    assert {each.command for each in parameters()} == set(BASES)


@pytest.mark.parametrize("case", [marked(case) for case in selected()])
def test_a_command_ends_with_an_answer_or_one_line(case, run):
    found = run(case)
    assert problems(case, found) == [], found["err"][-3000:]


def problems(case: Case, found: dict) -> list[str]:
    """What is wrong with how a command ended."""
    wrong = [f"{name} of the user was changed" for name in found["changed"]]
    if "Traceback" in found["err"] or "internal error" in found["err"]:
        wrong.append("an error that nobody foresaw")
    if found["ended"] in ("blocked", "busy"):
        wrong.append(f"it did not end: {found['ended']}")
    elif found["code"] in (1, 2):
        wrong += problems_of_refusal(case, found)
    elif found["code"] == 0:
        wrong += problems_of_answer(case, found)
    elif found["ended"] != "working":
        wrong.append(f"the exit code is {found['code']}")
    if case.must_refuse and found["code"] not in (1, 2):
        wrong.append("it was accepted")
    if case.must_succeed and found["code"] not in (0, None):
        wrong.append("it was refused")
    return wrong


def problems_of_refusal(case: Case, found: dict) -> list[str]:
    *_, error, hint = ["", "", *found["err"].rstrip("\n").split("\n")]
    lines = found["err"].split("\n")
    wrong = []
    if not (error.startswith("error: ") and hint.startswith("hint: ")):
        wrong.append("the last two lines are no error and hint")
    if sum(line.startswith("error:") for line in lines) != 1:
        wrong.append("there is not exactly one line with an error")
    if max(len(error), len(hint)) > ERROR_LENGTH:
        wrong.append("the line is too long to read")
    if not (error + hint).isprintable():
        wrong.append("the line holds control characters")
    # A stream is answered until it breaks off.
    if found["out"] and case.command != "guard score":
        wrong.append("something was printed to stdout")
    return wrong


def problems_of_answer(case: Case, found: dict) -> list[str]:
    if "--json" not in case.arguments or not found["out_is_whole"]:
        return []
    try:
        for line in found["out"].splitlines() if case.command == "guard score" else [found["out"]]:
            json.loads(line, parse_constant=refuse_constant)
    except ValueError as error:
        return [f"stdout is no JSON: {error}"]
    return []


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        ([b"read", b"caf\xe9"], b"", "expected UTF-8 text, got other bytes in argument 2"),
        ([b"read", b"-"], b"caf\xe9", "expected UTF-8 text, found byte 0xe9"),
        ([b"read", b"-"], b"a\0b", "found a NUL byte at byte 1"),
        ([b"lens", b"fit", b"--seed", b"9" * 23], b"", "'--seed'"),
        ([b"read", b"x" * 100_000, b"--lens", b"a\nb"], b"", "no lenses at a\\nb"),
    ],
)
def test_a_process_of_its_own_refuses_in_one_line(arguments, stdin, words, tmp_path, story_folder):
    if b"--lens" in arguments:
        arguments = [*arguments, b"--model", os.fsencode(story_folder)]
    done = subprocess.run(
        [sys.executable, "-m", "saccade", *arguments],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "SACCADE_CACHE": str(tmp_path)},
        timeout=120,
        check=False,
    )
    error, hint = done.stderr.decode().splitlines()
    assert done.returncode in (1, 2) and done.stdout == b""
    assert error.startswith("error: ") and words in error
    assert hint.startswith("hint: ")


def test_the_sample_touches_every_option_and_is_the_same_each_time():
    every = list(cases())
    sample = chosen(every, SAMPLE)
    assert [case.name for case in sample] == [case.name for case in chosen(list(cases()), SAMPLE)]
    touched = {(case.command, case.about.split()[0]) for case in sample}
    for each in parameters():
        assert (each.command, each.flag or each.name.upper()) in touched


def test_names_of_cases_are_unique():
    names = [case.name for case in cases()]
    assert len(names) == len(set(names))
