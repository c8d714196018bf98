"""Words whose mass is measured, as the tokens that a model would write them with."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.errors import UsageError
from saccade.investigations.bias_suites import word_lists

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

FEWEST = 2  # one word tells of that word, not of what it stands for


@dataclass(frozen=True)
class WordTokens:
    """Words, and the ids of the tokens that each is written with behind a space."""

    words: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]

    @property
    def in_pieces(self) -> tuple[str, ...]:
        """The words that take several tokens."""
        return tuple(w for w, ids in zip(self.words, self.ids, strict=True) if len(ids) > 1)

    @property
    def counted(self) -> tuple[bool, ...]:
        """Whether a word adds to the mass of all: "hers" does not where it is "her" and "s"."""
        return tuple(self.started_by(ids) is None for ids in self.ids)

    def started_by(self, ids: tuple[int, ...]) -> str | None:
        """The word whose tokens are the first of these, but not all of them."""
        for word, own in zip(self.words, self.ids, strict=True):
            if len(own) < len(ids) and ids[: len(own)] == own:
                return word
        return None


def find_words(asked: str) -> list[str]:
    """Words between commas, of a list by its name, or of a file (one a line; # begins a remark).

    >>> find_words("she, her,hers")
    ['she', 'her', 'hers']
    """
    lists = word_lists()
    # Commas first: a long line of words is no name that a file can have.
    if "," in asked:
        return [word for each in asked.split(",") if (word := each.strip())]
    if asked in lists:
        return list(lists[asked])
    try:
        is_file = Path(asked).is_file()
    except OSError:  # longer than any name of a file
        is_file = False
    if not is_file:
        near = difflib.get_close_matches(asked, lists, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"{asked[:60]!r} is no list of words: there is no such file, and no list of that name",
            hint=f"{guess}lists are {', '.join(lists)}; or write words with commas between them",
        )
    try:
        lines = Path(asked).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read words from {asked}: {error}", hint="give a text file, one word a line"
        ) from error
    return [word for line in lines if (word := line.partition("#")[0].strip())]


def tokens_of(model: LanguageModel, words: Sequence[str]) -> WordTokens:
    """How the model writes each word in the middle of a text.

    Raises:
        UsageError: there are fewer than two words, or one stands twice.
    """
    words = [word.strip() for word in words]
    if len(words) < FEWEST or not all(words):
        raise UsageError(
            f"expected at least {FEWEST} words, got {len(words)}: {', '.join(words) or 'none'}",
            hint="a list of words that mean alike tells more than one of them: she,her,hers",
        )
    if twice := sorted({word for word in words if words.count(word) > 1}):
        raise UsageError(f"the word {twice[0]!r} is listed twice", hint="leave one of them out")
    return WordTokens(tuple(words), tuple(behind_a_space(model, word) for word in words))


def refuse_shared(words: WordTokens, against: WordTokens) -> None:
    """Two lists that are set against each other have no word in common, nor the start of one."""
    if shared := sorted(set(words.words) & set(against.words)):
        raise UsageError(
            f"the word {shared[0]!r} is in both lists", hint="leave it out of one of them"
        )
    for one, other in ((words, against), (against, words)):
        for word, ids in zip(other.words, other.ids, strict=True):
            if (start := one.started_by(ids)) is not None:
                raise UsageError(
                    f"the model writes {word!r} as {start!r} and more, which is in the other list",
                    hint="leave one of the two out: the mass on the one is part of the other's",
                )


def behind_a_space(model: LanguageModel, word: str) -> tuple[int, ...]:
    """The tokens of a word in the middle of a text."""
    # Behind another word, because some tokenizers drop or add a space at the start of a text.
    before = model.encode("a")[0].tolist()
    whole = model.encode(f"a {word}")[0].tolist()
    if whole[: len(before)] != before or len(whole) == len(before):
        raise UsageError(
            f"the word {word!r} has no tokens of its own", hint="give words made of letters"
        )
    return tuple(whole[len(before) :])
