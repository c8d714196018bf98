"""Words whose probability mass is measured, and their tokens; suites of words and prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.errors import UsageError, suggest

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Words and prompts that come with saccade, and the notation for pairs of prompts.

DATA = "bias_suites.json"
_CHOICE = re.compile(r"\{([^{}|]*)\|([^{}|]*)\}")
# A choice that is not closed, not opened, or has more than two parts.
_BROKEN = re.compile(r"\{[^{}]*\||\|[^{}]*\}")


class Suite(NamedTuple):
    """A ready-made set of words and prompts."""

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
    """The names of all suites.

    >>> suite_names()
    ('pronouns', 'occupations', 'nationalities')
    """
    return tuple(_data()["suites"])


def find_suite(name: str) -> Suite:
    """A suite by its name."""
    if name not in suite_names():
        hint = suggest(name, suite_names(), f"suites are {', '.join(suite_names())}")
        raise UsageError(f"there is no suite {name!r}", hint=hint)
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
        raise UsageError("there are no prompts", hint="give at least two, one per line")
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
    whole = files("saccade.interp.studies").joinpath("data", DATA)
    return json.loads(whole.read_text(encoding="utf-8"))


FEWEST = 2  # a single word measures that word, not the attribute


@dataclass(frozen=True)
class WordTokens:
    """Words, and the ids of their tokens after a space."""

    words: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]

    @property
    def in_pieces(self) -> tuple[str, ...]:
        """The words that take several tokens."""
        return tuple(w for w, ids in zip(self.words, self.ids, strict=True) if len(ids) > 1)

    @property
    def counted(self) -> tuple[bool, ...]:
        """Whether a word adds to the total mass: "hers" does not if it is "her" and "s"."""
        return tuple(self.started_by(ids) is None for ids in self.ids)

    def started_by(self, ids: tuple[int, ...]) -> str | None:
        """The word whose tokens are a proper prefix of these."""
        for word, own in zip(self.words, self.ids, strict=True):
            if len(own) < len(ids) and ids[: len(own)] == own:
                return word
        return None


def find_words(asked: str) -> list[str]:
    """Comma-separated words, a list by name, or a file (one word per line; # starts a comment).

    >>> find_words("she, her,hers")
    ['she', 'her', 'hers']
    """
    lists = word_lists()
    # Commas first: a long line of words is not a valid file name.
    if "," in asked:
        return [word for each in asked.split(",") if (word := each.strip())]
    if asked in lists:
        return list(lists[asked])
    try:
        is_file = Path(asked).is_file()
    except OSError:  # too long for a file name
        is_file = False
    if not is_file:
        ways = f"lists are {', '.join(lists)}; or give comma-separated words"
        raise UsageError(
            f"{asked[:60]!r} is no list of words: there is no such file, and no list of that name",
            hint=suggest(asked, lists, ways),
        )
    try:
        lines = Path(asked).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read words from {asked}: {error}", hint="give a text file, one word per line"
        ) from error
    return [word for line in lines if (word := line.partition("#")[0].strip())]


def tokens_of(model: LanguageModel, words: Sequence[str]) -> WordTokens:
    """The tokens of each word in the middle of a text.

    Raises:
        UsageError: there are fewer than two words, or one is listed twice.
    """
    words = [word.strip() for word in words]
    if len(words) < FEWEST or not all(words):
        raise UsageError(
            f"expected at least {FEWEST} words, got {len(words)}: {', '.join(words) or 'none'}",
            hint="give several words of the same meaning: she,her,hers",
        )
    if twice := sorted({word for word in words if words.count(word) > 1}):
        raise UsageError(f"the word {twice[0]!r} is listed twice", hint="remove one of them")
    # Here, because the viewer lists words before torch is imported.
    from saccade.interp.effects.target import behind_a_space

    return WordTokens(tuple(words), tuple(behind_a_space(model, word) for word in words))


def refuse_shared(words: WordTokens, against: WordTokens) -> None:
    """Refuse two lists with a common word, or with a word that is a prefix of one in the other."""
    if shared := sorted(set(words.words) & set(against.words)):
        raise UsageError(
            f"the word {shared[0]!r} is in both lists", hint="remove it from one of them"
        )
    for one, other in ((words, against), (against, words)):
        for word, ids in zip(other.words, other.ids, strict=True):
            if (start := one.started_by(ids)) is not None:
                raise UsageError(
                    f"the tokens of {word!r} begin with those of {start!r} of the other list",
                    hint="remove one of the two: the mass on one is part of the other's",
                )
