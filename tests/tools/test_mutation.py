"""The tool of mutation rounds, on a toy package whose tests are known to be weak in one place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

TOY = '''"""A toy."""

LIMIT = 7


def clipped(n: int) -> int:
    """The number, at most the limit."""
    if n > LIMIT:
        return LIMIT
    return n


def share(part: int, whole: int) -> float:
    """A quotient."""
    assert whole > 3, "an assertion is left alone"
    return part / whole
'''
TESTS = """
from saccade.toy import clipped, share


def test_it_clips():
    assert [clipped(n) for n in (3, 100)] == [3, 7]


def test_it_shares():
    assert share(1, 8) in (0.125, 8)
"""


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "toy"
    for folder in ("saccade", "tests"):
        (root / folder).mkdir(parents=True)
    (root / "saccade" / "__init__.py").write_text("")
    (root / "saccade" / "toy.py").write_text(TOY)
    (root / "tests" / "test_toy.py").write_text(TESTS)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return root


def run(root, *options):
    """A round over the toy, in a process of its own."""
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "tools" / "mutation.py",
            "saccade/toy.py",
            "--root",
            root,
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={"HOME": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    return done


def judged(root, *options):
    done = run(root, "--equivalent", root / "none.json", *options)
    assert done.returncode == 0, done.stderr
    (module,) = json.loads(done.stdout)
    return module


def changes(module):
    return {tuple(each["change"]) for each in module["survived"]}


WEAK = {
    ("- if n > LIMIT:", "+ if n >= LIMIT:"),  # equivalent: at the limit both give the limit
    ("- return part / whole", "+ return part * whole"),
}


def test_a_known_weak_test_lets_known_mutants_survive_and_kills_the_rest(repository):
    module = judged(repository)
    assert changes(module) == WEAK
    # LIMIT + 1; > as >= and <=; the condition forced both ways; the return left out; / as *.
    assert (module["mutants"], module["run"], module["killed"]) == (7, 7, 5)
    places = {each["at"]: each["function"] for each in module["survived"]}
    assert places == {"saccade/toy.py:8": "clipped", "saccade/toy.py:16": "share"}
    assert (repository / "saccade" / "toy.py").read_text() == TOY


def test_equivalent_mutants_are_left_out_and_a_listing_without_a_mutant_is_told(repository):
    entry = {"module": "saccade/toy.py", "function": "clipped", "reason": "the same at the limit"}
    listed = [
        {**entry, "change": ["- if n > LIMIT:", "+ if n >= LIMIT:"]},
        {**entry, "change": ["- if n > OTHER:", "+ if n >= OTHER:"]},
    ]
    (repository / "none.json").write_text(json.dumps(listed))
    module = judged(repository)
    assert (module["equivalent"], module["run"]) == (1, 6)
    assert [each[2] for each in module["listed as equivalent, but no mutant"]] == [
        "- if n > OTHER:\n+ if n >= OTHER:"
    ]


def test_a_round_resumes_and_survivors_can_be_tried_again_with_a_better_test(repository):
    results = repository / "results.jsonl"
    assert judged(repository, "--lines", "16")["run"] == 1
    first = judged(repository, "--sample", "3", "--seed", "5", "--results", results)
    lines = results.read_text().splitlines()
    assert first["run"] == len(lines) == 3
    judged(repository, "--results", results)
    assert results.read_text().splitlines()[:3] == lines
    assert len(results.read_text().splitlines()) == 7
    tests = repository / "tests" / "test_toy.py"
    tests.write_text(TESTS.replace("in (0.125, 8)", "== 0.125"))
    module = judged(repository, "--results", results, "--survivors", "--jobs", "2")
    assert (module["run"], module["killed"]) == (2, 1)
    assert changes(module) == {("- if n > LIMIT:", "+ if n >= LIMIT:")}


def test_a_mutant_that_never_ends_counts_as_killed(repository):
    (repository / "saccade" / "toy.py").write_text(
        "def count(n: int) -> int:\n    while n > 5:\n        n -= 1\n    return n\n"
    )
    (repository / "tests" / "test_toy.py").write_text(
        "from saccade.toy import count\n\n\ndef test_it_counts():\n    assert count(10) == 5\n"
    )
    module = judged(repository, "--timeout", "0.5")
    assert module["survived"] == [] and module["killed"] == module["mutants"] > 3


def test_tests_that_fail_without_a_change_stop_the_round(repository):
    (repository / "tests" / "test_toy.py").write_text("def test_it():\n    assert False\n")
    done = run(repository)
    assert done.returncode == 1 and "fail without a change" in done.stderr


def test_every_equivalent_mutant_is_listed_with_a_reason():
    listed = json.loads((ROOT / "tools" / "mutation_equivalent.json").read_text(encoding="utf-8"))
    assert all(each["reason"].strip() and (ROOT / each["module"]).is_file() for each in listed)
