"""The bound for hard attention, judged by summing over all sequences of locations."""

import itertools

import pytest
import torch

from saccade.zoo.objectives.reinforce import reinforce_loss
from saccade.zoo.objectives.variational import exact_bound, marginal_log_likelihood, sampled_bound

BATCH, STEPS, LOCATIONS, CLASSES, D_HIDDEN = 2, 2, 3, 5, 7
PATHS = torch.tensor(list(itertools.product(range(LOCATIONS), repeat=STEPS)))  # [path, step]


class Glimpses(torch.nn.Module):
    """Looks at two of three places, one after the other, and says after each what it sees."""

    def __init__(self):
        super().__init__()
        self.where = torch.nn.Linear(D_HIDDEN, LOCATIONS)
        self.see = torch.nn.Linear(D_HIDDEN, D_HIDDEN)
        self.say = torch.nn.Linear(D_HIDDEN, CLASSES)

    def forward(self, image, path, target):
        """Log-probability of a path's locations, and of the answers: [batch, step] each."""
        hidden = image.mean(1)
        looked, said = [], []
        for location in path:
            looked.append(self.where(hidden).log_softmax(-1)[:, location])
            hidden = torch.tanh(self.see(hidden) + image[:, location])
            answers = self.say(hidden).log_softmax(-1)
            said.append(answers.gather(1, target[:, None])[:, 0])
        return torch.stack(looked, dim=1), torch.stack(said, dim=1)


@pytest.fixture
def glimpses():
    torch.manual_seed(0)
    return Glimpses().double()


@pytest.fixture
def seen(glimpses):
    """For all paths: log-probabilities of locations and of answers, [path, batch, step]."""
    image = torch.randn(BATCH, LOCATIONS, D_HIDDEN, dtype=torch.float64)
    both = [glimpses(image, path, torch.tensor([4, 1])) for path in PATHS.tolist()]
    return torch.stack([one[0] for one in both]), torch.stack([one[1] for one in both])


def gradient(value, module):
    return torch.autograd.grad(value, list(module.parameters()), retain_graph=True)


def mean_gradient(loss_of, log_location, module):
    """Of the losses of single paths, each as likely as the path is."""
    p = log_location.sum(2).exp().detach()
    total = [torch.zeros_like(weight) for weight in module.parameters()]
    for path, row in itertools.product(range(len(PATHS)), range(BATCH)):
        one = slice(path, path + 1), slice(row, row + 1)
        for i, more in enumerate(gradient(loss_of(one), module)):
            total[i] += p[path, row] * more / BATCH
    return total


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert all(other.norm() > 1e-3 for other in expected)


@pytest.mark.parametrize("baseline", [None, -1.7])
def test_the_sampled_gradient_is_on_average_that_of_the_exact_bound(glimpses, seen, baseline):
    log_location, said = seen
    total = said[:, :, -1:]  # the answer after all glimpses
    bound = exact_bound(log_location.sum(2).T, total[:, :, 0].T)
    expected = gradient(-bound.mean(), glimpses)
    b = None if baseline is None else torch.tensor(baseline, dtype=torch.float64)

    def loss(one):
        return sampled_bound(log_location[one], total[one], baseline=b).loss

    assert_same(mean_gradient(loss, log_location, glimpses), expected)


def test_it_is_also_with_an_answer_after_every_glimpse(glimpses, seen):
    log_location, said = seen
    expected = gradient(-exact_bound(log_location.sum(2).T, said.sum(2).T).mean(), glimpses)

    def loss(one):
        return sampled_bound(log_location[one], said[one]).loss

    assert_same(mean_gradient(loss, log_location, glimpses), expected)


def test_reinforce_with_the_log_likelihood_as_reward_is_the_same_gradient(glimpses, seen):
    """The bound's gradient, path by path, is REINFORCE's plus that of the supervised answer."""
    log_location, said = seen
    total = said[:, :, -1:]
    for path, row in itertools.product(range(len(PATHS)), range(BATCH)):
        one = slice(path, path + 1), slice(row, row + 1)
        found = gradient(sampled_bound(log_location[one], total[one]).loss, glimpses)
        rewarded = reinforce_loss(log_location[one], total[one].detach()).loss
        assert_same(found, gradient(rewarded - total[one].mean(), glimpses))


def test_the_bound_is_below_the_likelihood_and_meets_it_when_one_location_is_certain(seen):
    log_location, said = seen
    joint, likelihood = log_location.sum(2).T, said[:, :, -1].T  # [batch, path]
    exact = marginal_log_likelihood(joint, likelihood)
    torch.testing.assert_close(exact.exp(), (joint.exp() * likelihood.exp()).sum(1))
    assert (exact_bound(joint, likelihood) < exact).all()
    certain = torch.full_like(joint, -torch.inf)
    certain[:, 5] = 0.0
    torch.testing.assert_close(exact_bound(certain, likelihood), likelihood[:, 5])
    torch.testing.assert_close(marginal_log_likelihood(certain, likelihood), likelihood[:, 5])


def test_an_impossible_location_does_no_harm_even_if_the_answer_is_impossible_there():
    log_location = torch.tensor([[0.0, -torch.inf], [-1.0, -2.0]], requires_grad=True)
    log_likelihood = torch.tensor([[-1.0, -torch.inf], [-1.0, -2.0]], requires_grad=True)
    bound = exact_bound(log_location, log_likelihood)
    assert bound[0] == -1.0
    bound.sum().backward()
    assert log_location.grad is not None and log_location.grad.isfinite().all()
    assert log_likelihood.grad is not None and log_likelihood.grad.isfinite().all()


def test_the_bound_reported_is_the_mean_over_samples(seen):
    log_location, said = seen
    found = sampled_bound(log_location, said)
    torch.testing.assert_close(found.bound, said.sum(2).mean().detach())
    assert not found.bound.requires_grad


def test_the_weights_of_reward_and_entropy(seen):
    log_location, said = seen
    entropy = torch.rand(log_location.shape, dtype=torch.float64)
    found = sampled_bound(
        log_location, said, entropy=entropy, entropy_weight=0.3, reward_weight=0.5
    )
    policy = found.reinforced.policy
    expected = -said.sum(2).mean() + 0.5 * policy - 0.3 * entropy.sum(2).mean()
    torch.testing.assert_close(found.loss, expected)


def test_locations_that_were_not_drawn_are_not_rewarded_and_none_at_all_is_the_likelihood(seen):
    log_location, said = seen
    mask = torch.zeros(log_location.shape, dtype=torch.bool)
    mask[:, 0, 0] = True
    baseline = torch.zeros(log_location.shape, dtype=torch.float64)
    (found,) = torch.autograd.grad(
        sampled_bound(log_location, said.detach(), baseline=baseline, mask=mask).loss,
        log_location,
        retain_graph=True,
    )
    assert (found != 0).equal(mask)
    none = sampled_bound(log_location, said, baseline=baseline, mask=torch.zeros_like(mask))
    torch.testing.assert_close(none.loss, -said.sum(2).mean())
