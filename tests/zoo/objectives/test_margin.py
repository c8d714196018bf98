"""Margin ranking against a loop over candidates and against torch's own."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.objectives.likelihood import margin_ranking


def test_it_is_the_sum_over_wrong_candidates_that_come_too_close():
    torch.manual_seed(0)
    scores, right = torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3))
    mask = torch.rand(2, 3, 7) < 0.7
    found = margin_ranking(scores, right, mask, margin=0.5)
    for row in range(2):
        for step in range(3):
            own = scores[row, step, right[row, step]]
            expected = sum(
                max(0.0, (0.5 - own + scores[row, step, other]).item())
                for other in range(7)
                if other != right[row, step] and mask[row, step, other]
            )
            assert found[row, step].item() == pytest.approx(expected, abs=1e-5)


def test_it_is_torchs_multi_margin_loss_but_for_its_mean():
    scores, right = torch.randn(5, 11), torch.randint(0, 11, (5,))
    ours = margin_ranking(scores, right, margin=0.3)
    theirs = functional.multi_margin_loss(scores, right, margin=0.3, reduction="none")
    torch.testing.assert_close(ours, 11 * theirs)


def test_nothing_is_left_to_learn_once_the_right_one_leads_by_the_margin():
    scores = torch.tensor([[2.0, 1.8, -3.0]], requires_grad=True)
    margin_ranking(scores, torch.tensor([0]), margin=0.1).sum().backward()
    assert (scores.grad == 0).all()
