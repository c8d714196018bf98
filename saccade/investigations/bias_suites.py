"""Words and prompts that come with saccade, and the notation for pairs of prompts."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from saccade.errors import UsageError

DATA = "bias_suites.json"
_CHOICE = re.compile(r"\{([^{}|]*)\|([^{}|]*)\}")
# What is left of a choice that is not closed, not opened, or has more than two parts.
_BROKEN = re.compile(r"\{[^{}]*\||\|[^{}]*\}")


class Suite(NamedTuple):
    """A ready-made question about a model."""

    about: str
    words: tuple[str, ...]
    against: tuple[str, ...]
    prompts: tuple[str, ...]
    """In the notation of `split_pairs`."""


class PromptPairs(NamedTuple):
    """Prompts; with ``second``, each has a partner that differs in one attribute."""

    first: tuple[str, ...]
    second: tuple[str, ...] | None


def word_lists() -> Mapping[str, Sequence[str]]:
    """The lists of words by name.

    >>> word_lists()["she"]
    ['she', 'her', 'hers', 'herself']
    """
    return _data()["lists"]


def suite_names() -> tuple[str, ...]:
    """The suites that there are.

    >>> suite_names()
    ('pronouns', 'occupations', 'nationalities')
    """
    return tuple(_data()["suites"])


def find_suite(name: str) -> Suite:
    """A suite by its name."""
    if name not in suite_names():
        near = difflib.get_close_matches(name, suite_names(), n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"there is no suite {name!r}", hint=f"{guess}there are {', '.join(suite_names())}"
        )
    found, lists = _data()["suites"][name], word_lists()
    return Suite(
        about=found["about"],
        words=tuple(lists[found["words"]]),
        against=tuple(lists[found["against"]]),
        prompts=tuple(found["prompts"]),
    )


def split_pairs(lines: Sequence[str]) -> PromptPairs:
    """Prompts as they are, or pairs where every line has a choice ``{one|other}``.

    Raises:
        UsageError: a choice is broken, only some lines have one, or there are no lines.

    >>> split_pairs(["The {nurse|pilot} said that"])
    PromptPairs(first=('The nurse said that',), second=('The pilot said that',))
    """
    kept = [line.strip() for line in lines if line.strip()]
    if not kept:
        raise UsageError("there are no prompts", hint="give at least two, one a line")
    for line in kept:
        if _BROKEN.search(_CHOICE.sub("", line)):
            raise UsageError(
                f"expected a choice such as {{one|other}}, found a broken one in {line[:60]!r}",
                hint="close every {, and give two words with one | between them",
            )
    paired = [line for line in kept if _CHOICE.search(line)]
    if paired and len(paired) < len(kept):
        odd = next(line for line in kept if line not in paired)
        raise UsageError(
            f"some prompts are pairs, but this one is not: {odd!r}",
            hint="mark what differs as {one|other} in every line, or in none",
        )
    if not paired:
        return PromptPairs(tuple(kept), None)
    first, second = (tuple(_CHOICE.sub(rf"\{side}", line) for line in kept) for side in (1, 2))
    for one, other in zip(first, second, strict=True):
        if one == other:
            raise UsageError(
                f"the two prompts of a pair are the same: {one!r}",
                hint="give two different choices: {one|other}",
            )
    return PromptPairs(first, second)


@cache
def _data() -> Mapping[str, Any]:
    whole = files("saccade.investigations").joinpath("data", DATA)
    return json.loads(whole.read_text(encoding="utf-8"))
