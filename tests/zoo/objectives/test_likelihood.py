"""Cross-entropy, judged by torch's own."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.objectives.likelihood import token_loss

BATCH, POSITIONS, D_VOCAB = 3, 5, 7
LENGTHS = torch.tensor([5, 2, 3])


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(BATCH, POSITIONS, D_VOCAB, generator=generator, dtype=torch.float64)
    return logits.requires_grad_()


@pytest.fixture
def targets():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, D_VOCAB, (BATCH, POSITIONS), generator=generator)


@pytest.fixture
def mask():
    return torch.arange(POSITIONS) < LENGTHS[:, None]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_loss_and_gradient_are_torchs_over_the_real_positions(logits, targets, mask, smoothing):
    found = token_loss(logits, targets, mask, smoothing=smoothing)
    (gradient,) = torch.autograd.grad(3 * found.loss, logits)
    expected = functional.cross_entropy(logits[mask], targets[mask], label_smoothing=smoothing)
    (expected_gradient,) = torch.autograd.grad(3 * expected, logits)
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_nll_is_the_unsmoothed_sum(logits, targets, mask):
    found = token_loss(logits, targets, mask, smoothing=0.3)
    expected = functional.cross_entropy(logits[mask], targets[mask], reduction="sum")
    torch.testing.assert_close(found.nll, expected)
    assert found.n_tokens == int(LENGTHS.sum())
    assert not found.nll.requires_grad


def test_without_a_mask_all_positions_count_whatever_the_axes(logits, targets):
    flat = token_loss(logits.flatten(0, 1), targets.flatten(), smoothing=0.1)
    torch.testing.assert_close(flat, token_loss(logits, targets, smoothing=0.1))
    assert flat.n_tokens == BATCH * POSITIONS


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_gradient_by_hand_is_the_numerical_one(logits, targets, mask, smoothing):
    def loss(x):
        return token_loss(x, targets, mask, smoothing=smoothing).loss

    assert torch.autograd.gradcheck(loss, logits)


def test_the_graph_can_be_used_twice(logits, targets):
    loss = token_loss(logits, targets, smoothing=0.1).loss
    first, second = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second)


def test_what_stands_at_padding_does_not_matter(logits, targets, mask):
    expected = token_loss(logits, targets, mask, smoothing=0.1)
    (gradient,) = torch.autograd.grad(expected.loss, logits)
    spoilt = logits.detach().clone()
    spoilt[~mask] = 50 * torch.randn(D_VOCAB, dtype=torch.float64)
    spoilt[0, 0, targets[0, 0] - 1] = -torch.inf  # a symbol ruled out, at a real position
    spoilt[~mask, 0] = -torch.inf
    found = token_loss(spoilt.requires_grad_(), torch.where(mask, targets, 0), mask)
    assert found.loss.isfinite() and found.nll.isfinite()
    (other,) = torch.autograd.grad(found.loss, spoilt)
    assert other.isfinite().all() and (other[~mask] == 0).all() and (gradient[~mask] == 0).all()


def test_a_batch_of_padding_only_costs_nothing(logits, targets, mask):
    found = token_loss(logits, targets, torch.zeros_like(mask), smoothing=0.1)
    assert (found.loss.item(), found.nll.item(), found.n_tokens) == (0.0, 0.0, 0)


def test_half_precision_is_summed_in_full(logits, targets):
    half = logits.detach().bfloat16().requires_grad_()
    found = token_loss(half, targets)
    (gradient,) = torch.autograd.grad(found.loss, half)
    assert (found.loss.dtype, gradient.dtype) == (torch.float32, torch.bfloat16)
    expected = functional.cross_entropy(half.float().flatten(0, 1), targets.flatten())
    torch.testing.assert_close(found.loss, expected)
