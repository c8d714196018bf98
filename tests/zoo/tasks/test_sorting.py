"""Pairs are to be sorted by key, and equal keys stay in order."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.tasks.memory_tasks import as_sorting, bits_of, sort_batch


def number(bits):
    return int("".join(str(int(bit)) for bit in bits), 2)


def test_targets_are_pythons_stable_sort_of_the_items():
    batch = sort_batch(0, lengths=(13, 13), batch=7, seed=1, d_bits=3)  # many keys are equal
    for items, targets in zip(batch.items, batch.targets, strict=True):
        assert (items[:, -1] == 1).all()
        pairs = [(number(row[:3]), number(row[3:6])) for row in items]
        expected = sorted(pairs, key=lambda pair: pair[0])
        assert [(number(row[:3]), number(row[3:])) for row in targets] == expected


def test_a_batch_depends_on_its_seed_and_step_and_lengths_vary():
    first = sort_batch(4, lengths=(1, 5), batch=3, seed=2)
    assert all(map(torch.equal, first, sort_batch(4, lengths=(1, 5), batch=3, seed=2)))
    lengths = {
        sort_batch(step, lengths=(1, 5), batch=1, seed=0).items.shape[1] for step in range(60)
    }
    assert lengths == {1, 2, 3, 4, 5}


def test_bits_are_pythons_binary_digits():
    numbers = torch.tensor([[0, 5, 31], [1, 16, 22]])
    bits = bits_of(numbers, 5)
    for row, wanted in zip(bits, numbers.tolist(), strict=True):
        assert [number(each) for each in row] == wanted


def test_given_keys_are_sorted():
    batch = as_sorting(torch.tensor([[3, 1, 3]]), torch.tensor([[0, 1, 2]]), d_bits=2)
    assert batch.targets[0].tolist() == [[0, 1, 0, 1], [1, 1, 0, 0], [1, 1, 1, 0]]


@pytest.mark.parametrize("lengths", [(0, 3), (4, 3)])
def test_lengths_that_make_no_task_are_refused(lengths):
    with pytest.raises(UsageError, match="cannot sort from"):
        sort_batch(0, lengths=lengths, batch=2, seed=0)
