"""What all metrics of text are given: one answer a sentence, and one or several references."""

from __future__ import annotations

import re
from collections.abc import Sequence, Sized
from typing import Any

from saccade.errors import UsageError

References = Sequence[str | Sequence[str]]
"""For each sentence its reference, or a list of several."""


def check_counts(wanted: Sized, found: Sized, answers: str, references: str) -> None:
    """Refuse lists that do not belong together, and empty ones."""
    if len(wanted) != len(found):
        raise UsageError(
            f"{len(found)} {answers} and {len(wanted)} {references}: each needs its own",
            hint="check that both are whole and of the same part",
        )
    if not len(wanted):
        raise UsageError(f"there are no {answers} to score", hint="give at least one")


def by_sentence(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """A list of references for each answer, at least one."""
    check_counts(references, hypotheses, "answers", "references")
    lists = [[each] if isinstance(each, str) else list(each) for each in references]
    empty = next((n for n, each in enumerate(lists, start=1) if not each), None)
    if empty is not None:
        raise UsageError(f"answer {empty} has no reference", hint="give at least one")
    return lists


def as_streams(lists: Sequence[Sequence[str]]) -> list[list[Any]]:
    """First references of all sentences, then second ones, ...: the form sacrebleu takes.

    None stands where a sentence has fewer, which sacrebleu allows and its types do not.

    >>> as_streams([["a", "b"], ["c"]])
    [['a', 'c'], ['b', None]]
    """
    most = max(len(each) for each in lists)
    return [[each[k] if k < len(each) else None for each in lists] for k in range(most)]


def plain_words(text: str) -> list[str]:
    """Lower-cased words without punctuation, for metrics that compare words.

    >>> plain_words("A dog's tail, wagging.")
    ['a', 'dog', 's', 'tail', 'wagging']
    """
    return re.findall(r"\w+", text.lower())
