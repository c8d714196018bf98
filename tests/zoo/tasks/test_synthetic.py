"""The generated tasks are what they say, and the same whenever they are asked for."""

import itertools

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.long_range import (
    BASELINE,
    BLANK,
    D_VOCAB,
    SIGNAL,
    adding_batch,
    adding_batches,
    copying_baseline,
    copying_batch,
    copying_batches,
)

MAKERS = [(adding_batch, adding_batches), (copying_batch, copying_batches)]


@pytest.mark.parametrize(("one", "many"), MAKERS)
def test_a_batch_depends_on_its_seed_and_step_alone(one, many):
    sizes = {"length": 11, "batch": 7}
    first = one(5, seed=3, **sizes)
    torch.rand(13)  # whatever else is drawn does not matter
    assert all(map(torch.equal, one(5, seed=3, **sizes), first))
    assert not any(map(torch.equal, one(6, seed=3, **sizes), first))
    assert not any(map(torch.equal, one(5, seed=4, **sizes), first))
    stream = itertools.islice(many(seed=3, first_step=4, **sizes), 2)
    assert all(map(torch.equal, list(stream)[1], first))


def test_steps_and_seeds_do_not_meet():
    places = [(seed, step) for seed in range(5) for step in range(7)]
    drawn = {torch.rand((), generator=generator_of(*place)).item() for place in places}
    assert len(drawn) == 35


def test_the_sum_asked_for_is_that_of_the_two_marked_numbers():
    made = adding_batch(0, length=11, batch=101, seed=0)
    numbers, marks = made.inputs.unbind(2)
    assert ((numbers >= 0) & (numbers < 1)).all() and set(marks.unique().tolist()) == {0.0, 1.0}
    assert (marks[:, :5].sum(1) == 1).all() and (marks[:, 5:].sum(1) == 1).all()
    torch.testing.assert_close((numbers * marks).sum(1), made.targets)
    assert (marks.sum(0) > 0).all()  # a mark may lie anywhere


def test_always_saying_one_has_the_baselines_error():
    targets = adding_batch(0, length=2, batch=100_000, seed=0).targets
    assert (targets - 1).square().mean().item() == pytest.approx(BASELINE, abs=2e-3)


@pytest.mark.parametrize("length", [1, 17])
def test_what_is_to_be_copied_comes_first_and_is_wanted_last(length):
    inputs, targets = copying_batch(0, length=length, batch=7, seed=0)
    assert inputs.shape == targets.shape == (7, length + 20)
    assert (inputs[:, :10] < 8).all() and inputs.max() < D_VOCAB
    assert torch.equal(targets[:, -10:], inputs[:, :10])
    assert (targets[:, :-10] == BLANK).all()
    assert ((inputs == SIGNAL).sum(1) == 1).all()
    # After the signal there are as many steps as symbols to say.
    assert (inputs[:, length + 9] == SIGNAL).all() and (inputs[:, length + 10 :] == BLANK).all()


def test_guessing_the_ten_symbols_costs_the_baseline():
    _, targets = copying_batch(0, length=17, batch=7, seed=0)
    logits = torch.full((7, 37, D_VOCAB), -torch.inf)
    logits[:, :27, BLANK] = 0.0
    logits[:, 27:, :8] = 0.0
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets)
    assert loss.item() == pytest.approx(copying_baseline(17))


def test_lengths_that_make_no_task_are_refused():
    with pytest.raises(UsageError, match="2 steps or more, got length 1"):
        adding_batch(0, length=1, batch=2, seed=0)
    with pytest.raises(UsageError, match="1 step or more, got length 0"):
        copying_batch(0, length=0, batch=2, seed=0)
