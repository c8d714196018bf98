"""Edit distances against the recursion they are defined by."""

import itertools
import random
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


def by_table(first, second):
    """Wagner and Fischer's table, 1974, row by row."""
    row = list(range(len(second) + 1))
    for number, symbol in enumerate(first, start=1):
        diagonal, row[0] = row[0], number
        for place, other in enumerate(second, start=1):
            replaced = diagonal + (symbol != other)
            diagonal = row[place]
            row[place] = min(replaced, row[place] + 1, row[place - 1] + 1)
    return row[-1]


@pytest.mark.parametrize(
    "symbols",
    [
        "abcé中😀",
        [-3, -2, -1, 0, 1],  # Python gives -1 and -2 the same hash
        ["the", "th", "t", "", "h", "a" * 70],
        [("a", 1), ("a", 2), ("b", 1)],
        list(range(1000)),
    ],
    ids=["characters", "numbers", "words", "pairs", "many"],
)
def test_it_is_that_of_the_table_whatever_the_symbols_and_however_long(symbols):
    chance = random.Random(0)
    for _ in range(97):
        # Beyond 64 symbols they no longer fit into one machine word.
        first, second = (chance.choices(symbols, k=chance.randrange(131)) for _ in range(2))
        assert edit_distance(first, second) == by_table(first, second)
        begin, end = sorted(chance.choices(range(len(first) + 1), k=2))
        changed = first[:begin] + first[end:]
        assert edit_distance(first, changed) == end - begin
        if isinstance(symbols, str):
            assert edit_distance("".join(first), "".join(second)) == by_table(first, second)


def test_the_rate_counts_symbols_and_not_answers():
    found = edit_rate([[1, 2, 3], [4]], [[1, 2, 3, 3, 3], [4]])
    assert (found.n_edits, found.n) == (2, 6) and found.rate == pytest.approx(1 / 3)


def test_answers_and_references_must_be_as_many():
    with pytest.raises(SaccadeError):
        edit_rate(["a"], ["a", "b"])
