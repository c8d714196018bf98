"""Judged against plain Python lists."""

import pytest
import torch

from saccade.zoo.tasks.vocabulary import Ragged

ROWS = [[7, 8, 9], [], [5], [11, 12, 13, 14, 15], [6, 10]]


@pytest.fixture
def ragged():
    return Ragged.of(ROWS)


def rows_of(ragged):
    return [ragged.row(k).tolist() for k in range(len(ragged))]


def test_rows_come_back_as_they_went_in(ragged):
    assert rows_of(ragged) == ROWS
    assert ragged.lengths.tolist() == [len(row) for row in ROWS]
    assert len(ragged) == 5


def test_rows_can_be_chosen_in_any_order_and_more_than_once(ragged):
    order = [3, 1, 0, 3]
    assert rows_of(ragged.select(torch.tensor(order))) == [ROWS[k] for k in order]


def test_each_row_is_reversed_by_itself(ragged):
    assert rows_of(ragged.reversed()) == [row[::-1] for row in ROWS]


@pytest.mark.parametrize(("first", "last"), [(None, None), (1, None), (None, 2), (1, 2)])
def test_ids_are_put_before_and_after_each_row(ragged, first, last):
    before, after = [[] if each is None else [each] for each in (first, last)]
    made = ragged.between(first=first, last=last)
    assert rows_of(made) == [before + row + after for row in ROWS]


def test_rows_are_padded_to_the_longest_of_them(ragged):
    padded = ragged.pad(torch.tensor([2, 0, 1]))
    assert padded.ids.tolist() == [[5, 0, 0], [7, 8, 9], [0, 0, 0]]
    assert padded.mask.tolist() == [[True, False, False], [True] * 3, [False] * 3]


@pytest.mark.parametrize("rows", [[], [[], []]])
def test_nothing_can_be_padded_too(rows):
    ragged = Ragged.of(rows)
    padded = ragged.pad(torch.arange(len(ragged)))
    assert padded.ids.shape == padded.mask.shape == (len(rows), 0)
    assert rows_of(ragged.reversed()) == rows
    assert rows_of(ragged.between(last=2)) == [[2]] * len(rows)
