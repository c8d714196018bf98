"""REINFORCE, judged by the gradient of the expected return, summed over all that can happen."""

import itertools

import pytest
import torch
from torch.nn import functional

from saccade.zoo.objectives.reinforce import (
    LabelledBaseline,
    LearnedBaseline,
    MovingAverage,
    answers_loss,
    hybrid_loss,
    reinforce_loss,
    returns_to_go,
    stepwise_loss,
)

BATCH, STEPS, ACTIONS = 2, 3, 2
PATHS = torch.tensor(list(itertools.product(range(ACTIONS), repeat=STEPS)))  # [path, step]


@pytest.fixture
def scores():
    """Of each action at each step, given the action before (the last row: none)."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(BATCH, STEPS, ACTIONS + 1, ACTIONS, generator=generator)
    return scores.double().requires_grad_()


@pytest.fixture
def rewards():
    """After each step of each path, in each example."""
    generator = torch.Generator().manual_seed(1)
    shape = (len(PATHS), BATCH, STEPS)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    # A reward may depend on the path so far only.
    for t in range(STEPS):
        code = (PATHS[:, : t + 1] * ACTIONS ** torch.arange(t + 1)).sum(1)
        noise[:, :, t] = noise[code, :, t]
    return noise


def log_probs_of(scores):
    """The log-probability of each step of each path: [path, batch, step]."""
    before = torch.cat([torch.full((len(PATHS), 1), ACTIONS), PATHS[:, :-1]], dim=1)
    steps = torch.arange(STEPS)
    chosen = scores.log_softmax(-1)[:, steps, before, PATHS]  # [batch, path, step]
    return chosen.transpose(0, 1)


def expected_gradient(scores, losses):
    """The mean of the gradients that each single path would give, each as likely as it is."""
    p = log_probs_of(scores).sum(2).exp().detach()
    total = torch.zeros_like(scores)
    for path in range(len(PATHS)):
        for row in range(BATCH):
            (one,) = torch.autograd.grad(losses(path, row), scores, retain_graph=True)
            total += p[path, row] * one / BATCH
    return total


def exact_gradient(scores, rewards):
    value = (log_probs_of(scores).sum(2).exp() * rewards.sum(2)).sum(0).mean()
    return torch.autograd.grad(value, scores, retain_graph=True)[0]


@pytest.mark.parametrize("to_go", [False, True])
@pytest.mark.parametrize("with_baseline", [False, True])
def test_its_mean_gradient_is_that_of_the_expected_return(scores, rewards, to_go, with_baseline):
    log_prob = log_probs_of(scores)
    returns = returns_to_go(rewards) if to_go else rewards.sum(2, keepdim=True)
    baseline = torch.tensor([0.7, -1.3, 2.0], dtype=torch.float64) if with_baseline else None

    def loss(path, row):
        one = slice(path, path + 1), slice(row, row + 1)
        return reinforce_loss(log_prob[one], returns[one], baseline=baseline).policy

    found = expected_gradient(scores, loss)
    torch.testing.assert_close(found, -exact_gradient(scores, rewards))


def test_samples_are_averaged_and_steps_summed(scores, rewards):
    log_prob = log_probs_of(scores)
    together = reinforce_loss(log_prob, rewards).policy
    apart = [
        -(log_prob[i, b, t] * rewards[i, b, t])
        for i, b, t in itertools.product(range(len(PATHS)), range(BATCH), range(STEPS))
    ]
    torch.testing.assert_close(together, sum(apart) / (len(PATHS) * BATCH))


def test_a_baseline_makes_the_gradient_less_noisy():
    """Rewards around 10: without a baseline their size is all noise."""
    torch.manual_seed(0)
    scores = torch.zeros(ACTIONS, requires_grad=True)
    spread = {}
    for name, baseline in (("with", torch.tensor(10.0)), ("without", None)):
        gradients = []
        for _ in range(200):
            drawn = torch.randint(0, ACTIONS, (1, 1, 1))
            log_prob = scores.log_softmax(-1)[drawn]
            loss = reinforce_loss(log_prob, 10.0 + drawn.float(), baseline=baseline).policy
            gradients.append(torch.autograd.grad(loss, scores)[0])
        spread[name] = torch.stack(gradients).std(0).sum()
    assert spread["with"] < 0.15 * spread["without"]


def test_a_baseline_learns_from_its_error_only_and_the_policy_not_from_it(scores, rewards):
    baseline = torch.full((len(PATHS), BATCH, STEPS), 0.5).double().requires_grad_()
    found = reinforce_loss(log_probs_of(scores), rewards, baseline=baseline)
    (gradient,) = torch.autograd.grad(found.loss, baseline, retain_graph=True)
    torch.testing.assert_close(gradient, 2 * (baseline.detach() - rewards) / rewards.numel())
    torch.testing.assert_close(found.baseline, (rewards - 0.5).square().mean())
    assert torch.autograd.grad(found.baseline, scores, allow_unused=True) == (None,)


def test_returns_carry_no_gradient(scores, rewards):
    rewards.requires_grad_()
    found = reinforce_loss(log_probs_of(scores), rewards).loss
    assert torch.autograd.grad(found, rewards, allow_unused=True) == (None,)


def test_entropy_is_worth_its_weight(scores, rewards):
    log_prob = log_probs_of(scores)
    entropy = torch.rand(log_prob.shape, dtype=torch.float64, requires_grad=True)
    plain = reinforce_loss(log_prob, rewards)
    bonus = reinforce_loss(log_prob, rewards, entropy=entropy, entropy_weight=0.3)
    torch.testing.assert_close(bonus.loss, plain.loss - 0.3 * entropy.sum(2).mean())
    assert plain.entropy == 0


def test_steps_that_were_not_taken_do_not_count(scores, rewards):
    mask = torch.tensor([[True, True, False], [True, True, True]])[None]
    log_prob = log_probs_of(scores)
    settings = {"baseline": torch.zeros(1).double(), "entropy": rewards}
    found = reinforce_loss(log_prob, rewards, mask=mask, **settings)
    first = reinforce_loss(
        log_prob[:, :1, :2],
        rewards[:, :1, :2],
        baseline=settings["baseline"],
        entropy=rewards[:, :1, :2],
    )
    second = reinforce_loss(
        log_prob[:, 1:], rewards[:, 1:], baseline=settings["baseline"], entropy=rewards[:, 1:]
    )
    for name in ("policy", "entropy"):
        torch.testing.assert_close(
            getattr(found, name), (getattr(first, name) + getattr(second, name)) / 2
        )
    torch.testing.assert_close(found.baseline, (2 * first.baseline + 3 * second.baseline) / 5)


def test_returns_to_go_agree_with_a_loop(rewards):
    found = returns_to_go(rewards, discount=0.9)
    for t in range(STEPS):
        expected = sum(0.9 ** (u - t) * rewards[:, :, u] for u in range(t, STEPS))
        torch.testing.assert_close(found[:, :, t], expected)


def test_a_moving_average_weighs_what_it_has_seen():
    average, seen = MovingAverage(rate=0.1), [torch.full((2, 3), 5.0), torch.full((2, 3), 9.0)]
    assert average() == 0
    average.update(seen[0])
    torch.testing.assert_close(average(), torch.tensor(5.0))
    average.update(seen[1])
    torch.testing.assert_close(average(), torch.tensor((0.09 * 5 + 0.1 * 9) / 0.19))
    for _ in range(200):
        average.update(torch.ones(2))
    torch.testing.assert_close(average(), torch.tensor(1.0))
    assert set(average.state_dict()) == {"average", "seen"}


def test_a_learned_baseline_sends_no_gradient_into_the_network():
    baseline, hidden = LearnedBaseline(5), torch.randn(2, 3, 7, 5, requires_grad=True)
    predicted = baseline(hidden)
    assert predicted.shape == (2, 3, 7)
    predicted.sum().backward()
    assert hidden.grad is None
    assert baseline.predict.weight.grad is not None


def test_a_hybrid_loss_is_the_labels_and_a_little_of_the_rewards():
    torch.manual_seed(0)
    logits = torch.randn(3, BATCH, 5, requires_grad=True)
    target = torch.tensor([4, 1])
    log_prob = torch.randn(3, BATCH, STEPS, requires_grad=True)
    baseline, entropy = torch.full((3, BATCH, STEPS), 0.4), torch.rand(3, BATCH, STEPS)
    found = hybrid_loss(
        logits,
        target,
        log_prob=log_prob,
        baseline=baseline,
        entropy=entropy,
        entropy_weight=0.2,
        reinforce_weight=0.03,
    )
    right = torch.stack([logits[i].argmax(-1) == target for i in range(3)]).float()
    supervised = sum(functional.cross_entropy(logits[i], target) for i in range(3)) / 3
    policy = -((right[:, :, None] - 0.4) * log_prob).sum(2).mean()
    error = (right - 0.4).square().mean()
    expected = supervised + 0.03 * (policy - 0.2 * entropy.sum(2).mean()) + error
    torch.testing.assert_close(found.reward, right)
    torch.testing.assert_close(found.loss, expected)


def test_a_stepwise_loss_pays_each_look_for_what_it_adds():
    torch.manual_seed(0)
    logits = torch.randn(3, BATCH, STEPS + 1, 5, requires_grad=True)
    target = torch.tensor([4, 1])
    log_prob = torch.randn(3, BATCH, STEPS, requires_grad=True)
    baseline = torch.rand(3, BATCH, STEPS)
    found = stepwise_loss(
        logits,
        target,
        log_prob=log_prob,
        baseline=baseline,
        early_weight=0.3,
        discount=0.5,
        reinforce_weight=0.03,
    )
    supervised, policy, error = 0.0, 0.0, 0.0
    for sample, row in itertools.product(range(3), range(BATCH)):
        nats = [-each[target[row]].item() for each in logits[sample, row].log_softmax(-1)]
        supervised += nats[-1] + 0.3 * sum(nats[:-1]) / STEPS
        for step in range(STEPS):
            pay = sum(0.5 ** (at - step) * (nats[at] - nats[at + 1]) for at in range(step, STEPS))
            off = pay - baseline[sample, row, step].item()
            policy -= off * log_prob[sample, row, step].item()
            error += off**2 / STEPS
    expected = (supervised + 0.03 * policy + error) / (3 * BATCH)
    assert found.loss.item() == pytest.approx(expected, rel=1e-5)
    found.loss.backward()
    taught = torch.autograd.grad(answers_loss(logits, target, early_weight=0.3).loss, logits)
    torch.testing.assert_close((logits.grad,), taught)  # rewards are constants


def test_one_answer_alone_is_taught_like_any_other():
    logits, target = torch.randn(2, BATCH, 1, 5), torch.tensor([4, 1])
    found = answers_loss(logits, target, early_weight=0.3).loss
    expected = functional.cross_entropy(logits.flatten(0, 2), target.repeat(2))
    torch.testing.assert_close(found, expected)


def test_a_labelled_baseline_has_a_guess_for_each_class_and_sends_no_gradient_back():
    baseline, hidden = LabelledBaseline(5, 11), torch.randn(2, 3, 7, 5, requires_grad=True)
    predicted = baseline(hidden)
    assert predicted.shape == (2, 3, 7, 11)
    predicted.sum().backward()
    assert hidden.grad is None and baseline.predict.weight.grad is not None
