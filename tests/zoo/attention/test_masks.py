"""Masks and the softmax under them, judged by loops and by laws."""

import math

import pytest
import torch

from saccade.zoo.attention.masks import (
    causal_mask,
    masked_log_softmax,
    masked_softmax,
    padding_mask,
)


@pytest.fixture
def scores():
    return 3 * torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mask():
    return padding_mask(torch.tensor([5, 2, 0]), 5)[:, None]


def test_a_padding_mask_is_true_up_to_the_length():
    mask = padding_mask(torch.tensor([0, 3, 7]), 7)
    assert mask.tolist() == [[position < length for position in range(7)] for length in (0, 3, 7)]


def test_a_causal_mask_lets_nobody_look_ahead():
    mask = causal_mask(5)
    assert mask.tolist() == [[key <= query for key in range(5)] for query in range(5)]


def test_masked_softmax_is_the_softmax_of_what_is_left_by_loops(scores, mask):
    weights = masked_softmax(scores, mask)
    for row in range(3):
        allowed = [j for j in range(5) if mask[row, 0, j]]
        for query in range(2):
            total = sum(math.exp(scores[row, query, j]) for j in allowed)
            for j in range(5):
                expected = math.exp(scores[row, query, j]) / total if j in allowed else 0.0
                assert weights[row, query, j].item() == pytest.approx(expected, abs=1e-6)


def test_masked_weights_are_exactly_zero_and_the_rest_sums_to_one(scores, mask):
    weights = masked_softmax(scores, mask)
    assert (weights[~mask.expand_as(weights)] == 0).all()
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).float().expand(3, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_row_without_keys_is_zero_and_has_a_gradient_of_zero(scores, mask, dtype):
    scores = scores.to(dtype).requires_grad_()
    weights = masked_softmax(scores, mask)
    (weights * torch.arange(5)).sum().backward()
    assert weights.dtype == dtype
    assert (weights[2] == 0).all() and (scores.grad[2] == 0).all()
    assert weights.isfinite().all() and scores.grad.isfinite().all()


@pytest.mark.parametrize("softmax", [masked_softmax, masked_log_softmax])
def test_gradients_are_those_of_torchs_softmax_of_what_is_left(scores, mask, softmax):
    plain = {masked_softmax: torch.softmax, masked_log_softmax: torch.log_softmax}[softmax]
    upstream = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1))
    for row, n_left in enumerate((5, 2)):
        ours = scores[row].clone().requires_grad_()
        theirs = scores[row, :, :n_left].clone().requires_grad_()
        softmax(ours, mask[row])[:, :n_left].backward(upstream[row, :, :n_left])
        plain(theirs, -1).backward(upstream[row, :, :n_left])
        torch.testing.assert_close(ours.grad[:, :n_left], theirs.grad)
        assert (ours.grad[:, n_left:] == 0).all()


@pytest.mark.parametrize("softmax", [masked_softmax, masked_log_softmax])
def test_what_stands_under_the_mask_does_not_matter(scores, mask, softmax):
    spoilt = torch.where(mask, scores, torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, 0.0]))
    assert torch.equal(softmax(spoilt, mask), softmax(scores, mask))


def test_masked_log_softmax_is_the_logarithm_of_masked_softmax(scores, mask):
    torch.testing.assert_close(masked_log_softmax(scores, mask).exp(), masked_softmax(scores, mask))


def test_masked_log_softmax_has_a_finite_gradient_where_it_is_finite(scores, mask):
    scores = scores.requires_grad_()
    log_weights = masked_log_softmax(scores, mask)
    log_weights[mask.expand_as(log_weights)].sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[~mask.expand_as(scores)] == 0).all()


def test_far_scores_neither_overflow_nor_vanish():
    mask = torch.tensor([True, True, False])
    far = torch.tensor([1e4, 1e4 - 1, -1e4])
    assert masked_softmax(far, mask).tolist() == pytest.approx(
        [1 / (1 + math.exp(-1)), 1 / (1 + math.e), 0]
    )
