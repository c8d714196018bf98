"""Monotonic selection against the enumeration of every possible walk."""

import itertools

import pytest
import torch

from saccade.zoo.attention.select import MonotonicSelect

QUERIES, KEYS = 3, 5


def quiet() -> MonotonicSelect:
    return MonotonicSelect(noise=0.0, offset=0.0)


def enumerated(p, start=0):
    """The expected weights by adding up all walks: where each query stops, or that none does."""
    weights = torch.zeros(QUERIES, KEYS, dtype=p.dtype)
    for stops in itertools.product([*range(KEYS), None], repeat=QUERIES):
        probability, at = torch.ones((), dtype=p.dtype), start
        for query, stop in enumerate(stops):
            if at is None:  # has walked off the end, and stays there
                probability = probability * (stop is None)
            elif stop is None:
                probability = probability * (1 - p[query, at:]).prod()
            elif stop >= at:
                probability = probability * (1 - p[query, at:stop]).prod() * p[query, stop]
            else:
                probability = probability * 0
            at = stop
        for query, stop in enumerate(stops):
            if stop is not None:
                weights[query, stop] += probability
    return weights


@pytest.fixture
def scores():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, QUERIES, KEYS, dtype=torch.float64, generator=generator)


def everything(scores):
    return torch.ones(len(scores), 1, scores.shape[-1], dtype=torch.bool)


def test_expected_weights_are_those_of_all_walks_enumerated(scores):
    weights = quiet().double()(scores, everything(scores)).weights
    for row in range(2):
        torch.testing.assert_close(weights[row], enumerated(scores[row].sigmoid()))


def test_a_masked_key_is_walked_past(scores):
    mask = everything(scores)
    mask[1, 0, 2] = False
    weights = quiet().double()(scores, mask).weights
    p = scores[1].sigmoid()
    p[:, 2] = 0
    torch.testing.assert_close(weights[1], enumerated(p))


def test_gradients_are_right_by_finite_differences(scores):
    select = quiet().double()
    scores = scores.requires_grad_()
    mask = everything(scores)
    assert torch.autograd.gradcheck(lambda s: select(s, mask).weights, scores)


@pytest.mark.parametrize("training", [True, False])
def test_step_by_step_is_all_queries_at_once(scores, training):
    select = quiet().double().train(training)
    together = select(scores, everything(scores)).weights
    previous, alone = None, []
    for query in range(QUERIES):
        one = scores[:, query : query + 1]
        previous = select(one, everything(scores), previous).weights
        alone.append(previous)
    torch.testing.assert_close(torch.cat(alone, 1), together)


def test_in_evaluation_the_walk_stops_at_the_first_key_that_says_so():
    scores = torch.tensor(
        [
            [[-1, 1, 1, -1, 1], [1, -1, -1, 1, 1], [1, 1, 1, -1, -1]],
            [[1, -1, -1, -1, -1], [1, 1, 1, 1, 1], [-1, -1, -1, -1, 1]],
        ]
    ).float()
    weights = quiet().eval()(scores, everything(scores)).weights
    # The first row's third query finds no stop from key 3 on, and reads nothing.
    assert weights.argmax(-1).tolist() == [[1, 3, 0], [0, 0, 4]]
    assert weights.sum(-1).tolist() == [[1, 1, 0], [1, 1, 1]]


def test_decided_scores_give_the_same_weights_in_training_and_evaluation(scores):
    decided = 100 * torch.where(scores > 0, 1.0, -1.0).double()
    select = quiet().double()
    soft = select(decided, everything(decided)).weights
    hard = select.eval()(decided, everything(decided)).weights
    torch.testing.assert_close(soft, hard)


def test_extreme_scores_over_a_long_memory_neither_overflow_nor_vanish():
    # A product of 1 - p over the first half would be exp(-60 * 251): far below any float.
    scores = torch.full((2, 1, 503), 60.0)
    before = torch.zeros(2, 1, 503)
    before[:, :, 251] = 1.0
    scores = scores.requires_grad_()
    weights = quiet()(scores, everything(scores), before).weights
    assert weights[:, 0, 251].tolist() == pytest.approx([1.0, 1.0])
    (weights * torch.arange(503)).sum().backward()
    assert scores.grad.isfinite().all()


def test_noise_is_added_in_training_alone_and_the_offset_always(scores):
    torch.manual_seed(0)
    noisy = MonotonicSelect(noise=1.0, offset=0.0).double()
    mask = everything(scores)
    assert not torch.equal(noisy(scores, mask).weights, noisy(scores, mask).weights)
    assert torch.equal(noisy.eval()(scores, mask).weights, noisy(scores, mask).weights)
    shifted = MonotonicSelect(noise=0.0, offset=1.5).double()
    torch.testing.assert_close(
        shifted(scores, mask).weights, quiet().double()(scores + 1.5, mask).weights
    )
    assert shifted.offset.requires_grad
