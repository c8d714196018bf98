"""Cross-entropy with its gradient by hand against the plain one; both against torch's own."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.fast.forms import plain_forms
from saccade.zoo.objectives.likelihood import token_loss

BATCH, POSITIONS, D_VOCAB = 3, 5, 7
MASK = torch.arange(POSITIONS) < torch.tensor([5, 2, 3])[:, None]


@pytest.fixture
def logits():
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn(BATCH, POSITIONS, D_VOCAB, generator=chance, dtype=torch.float64)
    return logits.requires_grad_()


@pytest.fixture
def targets():
    return torch.randint(0, D_VOCAB, (BATCH, POSITIONS), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_both_forms_agree(logits, targets, mask, smoothing, assert_forms_agree):
    def loss(logits):
        return token_loss(logits, targets, mask, smoothing=smoothing)[:2]

    assert_forms_agree(loss, [logits])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_plain_form_is_torchs_over_the_real_positions(logits, targets, smoothing):
    with plain_forms():
        found = token_loss(logits, targets, MASK, smoothing=smoothing)
    real, right = logits[MASK], targets[MASK]
    expected = functional.cross_entropy(real, right, label_smoothing=smoothing)
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.nll, functional.cross_entropy(real, right, reduction="sum"))
    assert found.n_tokens == 10 and not found.nll.requires_grad


def test_both_forms_bear_a_symbol_ruled_out_and_a_batch_of_padding(
    logits, targets, assert_forms_agree
):
    ruled_out = logits.detach().clone()
    ruled_out[0, 0, targets[0, 0] - 1] = -torch.inf
    assert_forms_agree(lambda x: token_loss(x, targets, MASK).loss, [ruled_out.requires_grad_()])
    with plain_forms():
        found = token_loss(logits, targets, torch.zeros_like(MASK), smoothing=0.1)
    assert (found.loss.item(), found.nll.item(), found.n_tokens) == (0.0, 0.0, 0)
