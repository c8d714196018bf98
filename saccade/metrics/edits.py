"""How many symbols must be changed: the error rate of what was heard or read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from saccade.metrics.references import check_counts


class EditRate(NamedTuple):
    """Edits for each symbol of the references: less is better, and it may exceed 1."""

    rate: float
    n_edits: int
    n: int
    """Symbols of the references."""


def edit_rate(
    hypotheses: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]]
) -> EditRate:
    """The share of symbols that were left out, put in or taken for another one.

    With words as symbols it is the word error rate, with characters the character error rate, with
    digits the digit error rate. Edits of all answers over symbols of all references: short answers
    do not count more than long ones.

    >>> edit_rate(["314", "27"], ["3144", "17"]).rate
    0.3333333333333333
    """
    check_counts(references, hypotheses, "answers", "references")
    n = sum(map(len, references))
    n_edits = sum(map(edit_distance, hypotheses, references))
    return EditRate(n_edits / n if n else float(n_edits > 0), n_edits, n)


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and replacements that make one of the other.

    Levenshtein, 1966, by Wagner and Fischer's table, 1974.

    >>> edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(second) + 1))
    for number, symbol in enumerate(first, start=1):
        diagonal, row[0] = row[0], number
        for place, other in enumerate(second, start=1):
            replaced = diagonal + (symbol != other)
            diagonal = row[place]
            row[place] = min(replaced, row[place] + 1, row[place - 1] + 1)
    return row[-1]
