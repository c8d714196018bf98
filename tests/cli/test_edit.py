"""`saccade edit`: misuse is refused in one line, before minutes are spent."""

from __future__ import annotations

import json
import re

import pytest

PROMPT = "One day, a girl went to the park with her"


@pytest.fixture
def edit(saccade, stories):
    def run(*options: object):
        return saccade("edit", PROMPT, "--model", stories.name, *options)

    return run


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--ablate", "1.2", "--say", 512], 2, r"the prompt has \d+, and .* has room for \d+ more"),
        (["--ablate", "1.2", "--say", 10**6], 2, "cannot go on with 1000000 tokens"),
        (["--ablate", "1.2", "--say", 10**23], 2, "expected a number below 2[*][*]63"),
        (["--ablate", "1.2", "--at", ""], 2, "expected a text, got an empty one"),
        (["--ablate", f"{10**23}.1"], 2, "no layer 1"),
        (["--ablate", "1.2", "--at", 10**23], 2, "there is no position"),
        (["--scale", "1.2=nan"], 2, "the factor is not finite"),
        (["--scale", "1.2=1e300"], 1, "the model overflows on this text"),
        (["--memory", "dog", "--into", "2", "--strength", "nan"], 2, "expected a finite number"),
        (["--memory", "dog", "--into", "2", "--strength", "1e300"], 2, "a strength must be a num"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, list) else None,
)
def test_misuse_is_refused_in_one_line(edit, told_in_a_line, monkeypatch, options, code, words):
    def generated_too_early(*_: object, **__: object) -> None:
        raise AssertionError("unrelated text was generated first")

    if code == 2:
        monkeypatch.setattr(
            "saccade.interp.effects.replacement.reference_text", generated_too_early
        )
    found, out, err = edit(*options)
    assert (found, out) == (code, "")
    assert re.search(words, told_in_a_line(err))


def test_a_continuation_can_fill_the_context(edit, stories):
    code, out, _ = edit("--ablate", "1.2", "--say", 495, "--json")
    assert code == 0
    assert stories.encode(PROMPT + json.loads(out)["continuation"]).shape[1] <= 512
