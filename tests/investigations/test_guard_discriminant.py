"""The discriminant of a guard: Fisher's direction by loops, log odds by two densities."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from saccade.investigations.guard_discriminant import FARTHEST, Discriminant, shrunk_covariance

D = 7


@pytest.fixture
def kinds():
    chance = torch.Generator().manual_seed(0)
    mix = torch.randn(D, D, generator=chance).double()
    first = torch.randn(101, D, generator=chance).double() @ mix + 3
    second = torch.randn(53, D, generator=chance).double() @ mix + 3
    second[:, 2] += 4
    return first, second


def test_shrinking_keeps_the_mean_variance_and_draws_towards_it(kinds):
    centred = kinds[0] - kinds[0].mean(0)
    n = len(centred)
    plain = torch.zeros(D, D).double()
    for x in centred:
        plain += torch.outer(x, x) / n
    found = shrunk_covariance(centred, share=0.3)
    torch.testing.assert_close(found.trace(), plain.trace())
    off = ~torch.eye(D, dtype=torch.bool)
    torch.testing.assert_close(found[off], 0.7 * plain[off])


def test_few_points_in_many_dimensions_have_an_inverse():
    centred = torch.randn(5, 31, generator=torch.Generator().manual_seed(1)).double()
    assert torch.linalg.eigvalsh(shrunk_covariance(centred)).min() > 0


def test_log_odds_are_those_of_two_gaussians_with_one_covariance(kinds):
    first, second = kinds
    fitted = Discriminant.fit(first, second)

    def standard(x: torch.Tensor) -> torch.Tensor:
        return ((x - fitted.centre) / fitted.scale).clamp(-FARTHEST, FARTHEST)

    means = [standard(each).mean(0) for each in kinds]
    centred = torch.cat([standard(each) - m for each, m in zip(kinds, means, strict=True)])
    one, other = (MultivariateNormal(m, shrunk_covariance(centred)) for m in means)
    new = torch.cat([first[:11], second[:5]])
    expected = other.log_prob(standard(new)) - one.log_prob(standard(new))
    torch.testing.assert_close(fitted.log_odds(new), expected)


def test_shares_sum_to_the_log_odds_but_for_the_way_to_the_middle(kinds):
    fitted = Discriminant.fit(*kinds)
    shares = fitted.shares(kinds[1])
    torch.testing.assert_close(shares.sum(1) - fitted.half_way, fitted.log_odds(kinds[1]))
    middle = fitted.scale * fitted.mean + fitted.centre
    torch.testing.assert_close(fitted.shares(middle[None]), torch.zeros(1, D).double())


def test_the_two_kinds_are_told_apart(kinds):
    fitted = Discriminant.fit(*kinds)
    first, second = (fitted.log_odds(each) for each in kinds)
    assert float((second > 0).double().mean()) > 0.8
    assert float((first < 0).double().mean()) > 0.8


def test_one_feature_counts_only_so_far(kinds):
    fitted = Discriminant.fit(*kinds)
    wild, wilder = kinds[0][:1].clone(), kinds[0][:1].clone()
    wild[0, 3], wilder[0, 3] = 1e6, 1e9
    assert torch.equal(fitted.log_odds(wild), fitted.log_odds(wilder))


def test_a_feature_that_never_changes_does_no_harm(kinds):
    for each in kinds:
        each[:, 4] = 4.0
    assert torch.isfinite(Discriminant.fit(*kinds).log_odds(kinds[1])).all()
