"""The loss of a choice among candidates."""

import math

import torch

from saccade.zoo.objectives.likelihood import cloze_loss


def test_it_is_the_mean_surprise_at_the_answers_among_candidates():
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, generator=chance)
    candidates = torch.rand(3, 7, generator=chance) > 0.4
    answers = torch.tensor([row.nonzero()[0, 0] for row in candidates])
    total = 0.0
    for row in range(3):
        offered = [logits[row, label].exp().item() for label in range(7) if candidates[row, label]]
        total -= math.log(logits[row, answers[row]].exp().item() / sum(offered))
    torch.testing.assert_close(cloze_loss(logits, answers, candidates), torch.tensor(total / 3))


def test_what_is_no_candidate_gets_no_gradient():
    logits = torch.zeros(1, 4, requires_grad=True)
    cloze_loss(logits, torch.tensor([1]), torch.tensor([[False, True, True, False]])).backward()
    assert logits.grad.tolist() == [[0.0, -0.5, 0.5, 0.0]]
