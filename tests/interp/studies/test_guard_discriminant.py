"""The discriminant of a guard: its loss by loops, its minimum by another method, what it learns."""

import pytest
import torch
from torch.nn.functional import softplus

from saccade.interp.studies.guard.features import FARTHEST, RIDGE, Discriminant, soft_maximum

D = 7


@pytest.fixture
def prompts():
    """Of unlike lengths; in those of the second kind one span, somewhere, is high in two."""
    chance = torch.Generator().manual_seed(0)
    found = [torch.randn(3 + row % 5, D, generator=chance) * 2 + 1 for row in range(200)]
    has_request = torch.arange(200) % 2 == 1
    for row in range(1, 200, 2):
        found[row][row % len(found[row]), 2:4] += 9
    return found, has_request


def standard(fitted, points):
    return ((points - fitted.centre) / fitted.scale).clamp(-FARTHEST, FARTHEST)


def loss_of(fitted, prompts, has_request, *, weight, bias):
    """By its definition, prompt by prompt."""
    total = RIDGE * weight.square().sum()
    for points, is_one in zip(prompts, has_request.tolist(), strict=True):
        odds = (standard(fitted, points).double() @ weight + bias).exp().sum().log()
        total = total + softplus(-odds if is_one else odds) / len(prompts)
    return total


def test_the_soft_maximum_is_that_of_loops_and_never_overflows():
    scores = torch.tensor([0.5, -1.0, 2.0, 1000.0, 1001.0, -1000.0]).double()
    found = soft_maximum(scores, torch.tensor([0, 0, 0, 1, 1, 2]), n=3)
    expected = [scores[:3].logsumexp(0), scores[3:5].logsumexp(0), scores[5]]
    torch.testing.assert_close(found, torch.stack(expected))


def test_at_its_weights_the_loss_of_the_definition_has_no_slope(prompts):
    fitted = Discriminant.fit(*prompts)
    weight = fitted.weight.double().requires_grad_()
    bias = torch.tensor(fitted.bias).double().requires_grad_()
    loss = loss_of(fitted, *prompts, weight=weight, bias=bias)
    slopes = torch.autograd.grad(loss, [weight, bias])
    assert max(float(each.abs().max()) for each in slopes) < 1e-3
    start = loss_of(fitted, *prompts, weight=torch.zeros(D).double(), bias=0.0)
    assert loss < 0.7 * start


def test_with_one_span_per_prompt_it_is_logistic_regression(prompts):
    """Against Newton's method, which shares nothing with it but the loss."""
    single = [points[row % len(points)][None] for row, points in enumerate(prompts[0])]
    fitted = Discriminant.fit(single, prompts[1])
    x = torch.cat([standard(fitted, torch.cat(single)), torch.ones(200, 1)], 1).double()
    y, w = prompts[1].double(), torch.zeros(D + 1).double()
    ridge = 2 * RIDGE * torch.cat([torch.ones(D), torch.zeros(1)]).double()
    for _ in range(30):
        p = (x @ w).sigmoid()
        slope = x.T @ (p - y) / 200 + ridge * w
        curve = (x.T * (p * (1 - p))) @ x / 200 + ridge.diag()
        w = w - torch.linalg.solve(curve, slope)
    found = torch.cat([fitted.weight, torch.tensor([fitted.bias])]).double()
    torch.testing.assert_close(found, w, rtol=1e-2, atol=1e-3)


def test_it_finds_the_span_that_has_no_label(prompts):
    fitted = Discriminant.fit(*prompts)
    for row in range(1, 200, 2):
        points = prompts[0][row]
        assert int(fitted.log_odds(points).argmax()) == row % len(points)
    scores = torch.stack([fitted.log_odds(each).max() for each in prompts[0]])
    assert scores[prompts[1]].min() > scores[~prompts[1]].median()


def test_shares_sum_to_the_difference_from_an_ordinary_span(prompts):
    fitted = Discriminant.fit(*prompts)
    points = prompts[0][1]
    middle = fitted.scale * fitted.mean + fitted.centre
    way = fitted.log_odds(points) - fitted.log_odds(middle[None])
    torch.testing.assert_close(fitted.shares(points).sum(1), way)
    torch.testing.assert_close(fitted.shares(middle[None]), torch.zeros(1, D))


def test_one_feature_counts_only_so_far(prompts):
    fitted = Discriminant.fit(*prompts)
    wild, wilder = prompts[0][0][:1].clone(), prompts[0][0][:1].clone()
    wild[0, 3], wilder[0, 3] = 1e6, 1e9
    assert torch.equal(fitted.log_odds(wild), fitted.log_odds(wilder))


def test_a_feature_that_never_changes_does_no_harm_and_prompts_are_left_alone(prompts):
    for each in prompts[0]:
        each[:, 4] = 4.0
    before = [each.clone() for each in prompts[0]]
    assert torch.isfinite(Discriminant.fit(*prompts).log_odds(prompts[0][0])).all()
    assert all(torch.equal(*pair) for pair in zip(before, prompts[0], strict=True))
