"""Tasks of bits ask for what they should, and are the same whenever they are asked for."""

import itertools

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.tasks.memory_tasks import (
    copy_batch,
    priority_sort_batch,
    recall_batch,
    repeat_copy_batch,
)

SIZES = {"batch": 5, "seed": 3}
MAKERS = [
    lambda step: copy_batch(step, lengths=(2, 9), **SIZES),
    lambda step: repeat_copy_batch(step, lengths=(2, 4), repeats=(1, 5), **SIZES),
    lambda step: recall_batch(step, items=(2, 6), **SIZES),
    lambda step: priority_sort_batch(step, n_shown=7, n_wanted=4, **SIZES),
]


def asked(batch):
    """What is wanted, without the silence."""
    return [targets[wanted] for targets, wanted in zip(batch.targets, batch.is_asked, strict=True)]


@pytest.mark.parametrize("make", MAKERS)
def test_a_batch_depends_on_its_seed_and_step_alone(make):
    first = make(5)
    torch.rand(13)
    assert all(map(torch.equal, make(5), first))
    other = make(6)
    assert other.inputs.shape != first.inputs.shape or not torch.equal(other.inputs, first.inputs)


@pytest.mark.parametrize("make", MAKERS)
def test_nothing_is_shown_while_something_is_asked(make):
    batch = make(0)
    assert (batch.inputs[batch.is_asked] == 0).all()
    assert (batch.targets[~batch.is_asked] == 0).all()
    assert set(batch.targets.unique().tolist()) == {0.0, 1.0}
    assert batch.is_asked[:, -1].all() and not batch.is_asked[:, 0].any()


def test_lengths_are_drawn_between_their_bounds():
    lengths = {
        int(copy_batch(step, lengths=(2, 4), batch=1, seed=0).is_asked.sum()) for step in range(60)
    }
    assert lengths == {2, 3, 4}


def test_a_copy_is_what_was_shown():
    batch = MAKERS[0](1)
    for shown, wanted in zip(batch.inputs, asked(batch), strict=True):
        length = len(wanted)
        assert torch.equal(shown[:length, :8], wanted)
        assert shown[length].tolist() == [0.0] * 8 + [1.0]


def test_a_repeated_copy_says_it_as_often_as_told_and_ends():
    batch = MAKERS[1](2)
    for shown, wanted in zip(batch.inputs, asked(batch), strict=True):
        mark = int(shown[:, 8].argmax())
        times = round(10 * shown[mark, 9].item())
        assert len(wanted) == mark * times + 1
        for at in range(mark * times):
            assert torch.equal(wanted[at, :8], shown[at % mark, :8]) and wanted[at, 8] == 0
        assert wanted[-1].tolist() == [0.0] * 8 + [1.0]


def test_recall_wants_the_item_after_the_one_that_is_shown_again():
    batch = MAKERS[2](4)
    for shown, wanted in zip(batch.inputs, asked(batch), strict=True):
        begins = (shown[:, 6] == 1).nonzero()[:, 0].tolist()
        items = [shown[at + 1 : at + 4, :6] for at in begins]
        first, last = (shown[:, 7] == 1).nonzero()[:, 0].tolist()
        query = shown[first + 1 : last, :6]
        assert len(query) == 3 and last == len(shown) - 4
        followers = [after for item, after in itertools.pairwise(items) if torch.equal(item, query)]
        assert any(torch.equal(wanted, after) for after in followers)


def test_sorting_wants_the_vectors_of_the_highest_priorities():
    batch = MAKERS[3](0)
    for shown, wanted in zip(batch.inputs, asked(batch), strict=True):
        pairs = sorted(
            ((row[8].item(), row[:8].tolist()) for row in shown[:7]), key=lambda pair: -pair[0]
        )
        assert wanted.tolist() == [vector for _, vector in pairs[:4]]
        assert shown[7].tolist() == [0.0] * 9 + [1.0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: copy_batch(0, lengths=(0, 3), **SIZES), "from 0 to 3"),
        (lambda: copy_batch(0, lengths=(4, 3), **SIZES), "from 4 to 3"),
        (lambda: recall_batch(0, items=(1, 3), **SIZES), "two items or more, got 1"),
        (lambda: priority_sort_batch(0, n_shown=3, n_wanted=4, **SIZES), "of 3 vectors 4"),
    ],
)
def test_sizes_that_make_no_task_are_refused(make, said):
    with pytest.raises(UsageError, match=said) as refused:
        make()
    assert refused.value.hint
