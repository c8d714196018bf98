"""Edit distances against the recursion they are defined by."""

import itertools
from functools import cache

import pytest

from saccade.errors import SaccadeError
from saccade.zoo.metrics.sequence_metrics import edit_distance, edit_rate


@cache
def by_recursion(first, second):
    if not first or not second:
        return len(first) + len(second)
    return min(
        by_recursion(first[1:], second) + 1,
        by_recursion(first, second[1:]) + 1,
        by_recursion(first[1:], second[1:]) + (first[0] != second[0]),
    )


def test_it_is_the_fewest_edits_of_all():
    texts = ["".join(t) for n in range(5) for t in itertools.product("ab", repeat=n)]
    for first, second in itertools.product(texts, repeat=2):
        assert edit_distance(first, second) == by_recursion(first, second)


def test_the_rate_counts_symbols_and_not_answers():
    found = edit_rate([[1, 2, 3], [4]], [[1, 2, 3, 3, 3], [4]])
    assert (found.n_edits, found.n) == (2, 6) and found.rate == pytest.approx(1 / 3)


def test_answers_and_references_must_be_as_many():
    with pytest.raises(SaccadeError):
        edit_rate(["a"], ["a", "b"])
