"""REINFORCE: learning from rewards for sampled actions.

Williams, 1992 (https://doi.org/10.1007/BF00992696): the gradient of the expected return is
``E[return * grad log p(actions)]``, and the mean over M sampled sequences of actions estimates it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

# Baselines, which reduce the variance of the REINFORCE gradient.
#
# A baseline must not depend on the action; then it changes the variance of the gradient and not its
# mean.


class MovingAverage(nn.Module):
    """Exponential moving average of the returns, with a weight of 0.1 for each new batch.

    Xu et al., 2015 (https://arxiv.org/abs/1502.03044), section 4.1: ``b = 0.9 b + 0.1 return``.
    Theirs starts at zero and is biased for some batches; we correct the bias as Adam does. It is a
    buffer, so a resumed run restores it.
    """

    average: Tensor
    seen: Tensor

    def __init__(self, *, rate: float = 0.1) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self) -> Float[Tensor, ""]:
        """The average so far; zero before the first update."""
        return self.average / self.seen.clamp_min(self.rate)

    @torch.no_grad()
    def update(self, returns: Float[Tensor, "*any"]) -> None:
        """Add the returns of a batch, after its loss was computed."""
        self.average.lerp_(returns.mean(), self.rate)
        self.seen.lerp_(torch.ones_like(self.seen), self.rate)


class LearnedBaseline(nn.Module):
    """Predict the return from the state of the network at each step.

    Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), section 3: trained by the squared error
    that `reinforce_loss` adds. The state is detached, because the baseline's error should not train
    the network.
    """

    def __init__(self, d_hidden: int) -> None:
        super().__init__()
        self.predict = nn.Linear(d_hidden, 1)

    def forward(self, hidden: Float[Tensor, "*at d_hidden"]) -> Float[Tensor, "*at"]:
        """The expected return."""
        return self.predict(hidden.detach())[..., 0]


class LabelledBaseline(nn.Module):
    """Predict the return at each step for each possible label.

    The label is known in training and predicts the return better than the state alone. It does not
    depend on the action, so the mean of the gradient is unchanged. As in `LearnedBaseline` the
    state is detached.
    """

    def __init__(self, d_hidden: int, n_classes: int) -> None:
        super().__init__()
        self.predict = nn.Linear(d_hidden, n_classes)

    def forward(self, hidden: Float[Tensor, "*at d_hidden"]) -> Float[Tensor, "*at d_class"]:
        """The expected return for each possible label."""
        return self.predict(hidden.detach())


def of_right_answer(
    expected: Float[Tensor, "sample batch step d_class"], right: Int[Tensor, "batch step"]
) -> Float[Tensor, "sample batch step"]:
    """The prediction of a `LabelledBaseline` at each step for the true label."""
    return expected.gather(3, right[None, :, :, None].expand(*expected.shape[:3], 1))[..., 0]


class Reinforced(NamedTuple):
    """The parts of a loss that rewards sampled actions."""

    loss: Float[Tensor, ""]
    """To minimise: ``policy - entropy_weight * entropy + baseline``."""
    policy: Float[Tensor, ""]
    """Its gradient estimates that of minus the expected return; its value has no meaning."""
    entropy: Float[Tensor, ""]
    """Mean over samples of the summed entropies of the steps; zero if they were not given."""
    baseline: Float[Tensor, ""]
    """Mean squared error of the baseline; zero without one."""


def reinforce_loss(
    log_prob: Float[Tensor, "sample batch step"],
    returns: Float[Tensor, "sample batch #step"],
    *,
    baseline: Float[Tensor, "..."] | None = None,
    entropy: Float[Tensor, "sample batch step"] | None = None,
    entropy_weight: float = 0.0,
    mask: Bool[Tensor, "#sample batch step"] | None = None,
) -> Reinforced:
    """Increase the probability of actions with returns above the baseline, decrease the others.

    The gradient goes to the log-probabilities only, not through the returns; and from the squared
    error to the baseline only. Sampled actions must have been detached before their log-probability
    was taken, else a Gaussian policy gets no gradient at all.

    Args:
        log_prob: Of each action. The first axis has M samples of one example.
        returns: Return of an action: one number for all steps, or one for each
            (`returns_to_go`).
        baseline: Compared with the returns; any shape that broadcasts against them.
        entropy: Of the distribution that each action was drawn from.
        entropy_weight: Weight of the entropy bonus.
        mask: True at real steps.
    """
    returns = returns.detach()
    compared = torch.zeros_like(returns) if baseline is None else baseline
    advantage = (returns - compared.detach()).expand_as(log_prob)
    entropies = torch.zeros_like(log_prob) if entropy is None else entropy
    policy = -_per_sample(advantage * log_prob, mask)
    undecided = _per_sample(entropies, mask)
    error = (returns - compared).square().expand_as(log_prob)
    n_steps = _per_sample(torch.ones_like(log_prob), mask).clamp_min(1e-6)  # there may be none
    error = _per_sample(error, mask) / n_steps if baseline is not None else torch.zeros_like(policy)
    return Reinforced(
        loss=policy - entropy_weight * undecided + error,
        policy=policy,
        entropy=undecided,
        baseline=error,
    )


def returns_to_go(
    rewards: Float[Tensor, "sample batch step"], *, discount: float = 1.0
) -> Float[Tensor, "sample batch step"]:
    """Sum of the rewards from each step on: an action does not affect earlier rewards.

    >>> returns_to_go(torch.tensor([[[1.0, 2.0, 4.0]]]), discount=0.5)
    tensor([[[3., 4., 4.]]])
    """
    total = torch.zeros_like(rewards[:, :, 0])
    backwards = []
    for reward in rewards.unbind(2)[::-1]:
        total = reward + discount * total
        backwards.append(total)
    return torch.stack(backwards[::-1], dim=2)


class Hybrid(NamedTuple):
    """Loss of a classifier that chooses where to look: from its label and from its reward."""

    loss: Float[Tensor, ""]
    supervised: Float[Tensor, ""]
    """Cross-entropy of the last step's answer, and of earlier ones where they are trained."""
    reward: Float[Tensor, "sample batch"]
    """1 where the last answer was correct."""
    reinforced: Reinforced


def hybrid_loss(
    logits: Float[Tensor, "sample batch d_class"],
    target: Int[Tensor, " batch"],
    *,
    log_prob: Float[Tensor, "sample batch step"],
    baseline: Float[Tensor, "..."] | None = None,
    entropy: Float[Tensor, "sample batch step"] | None = None,
    entropy_weight: float = 0.0,
    reinforce_weight: float = 0.01,
) -> Hybrid:
    """Train the last step's answer by its label and the glimpses before it by reward.

    Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), section 3, "hybrid supervised loss". The
    paper does not say how the two are weighted; the public reimplementations that reach its numbers
    use 0.01 for the reward. The baseline's error has weight 1.
    """
    n_samples = len(logits)
    supervised = functional.cross_entropy(logits.flatten(0, 1), target.repeat(n_samples))
    reward = (logits.argmax(-1) == target).to(logits.dtype)
    reinforced = reinforce_loss(
        log_prob,
        reward[:, :, None],
        baseline=baseline,
        entropy=entropy,
        entropy_weight=entropy_weight,
    )
    chosen = reinforced.policy - entropy_weight * reinforced.entropy
    loss = supervised + reinforce_weight * chosen + reinforced.baseline
    return Hybrid(loss, supervised, reward, reinforced)


def stepwise_loss(
    logits: Float[Tensor, "sample batch answer d_class"],
    target: Int[Tensor, " batch"],
    *,
    log_prob: Float[Tensor, "sample batch step"],
    baseline: Float[Tensor, "..."] | None = None,
    early_weight: float,
    discount: float,
    reinforce_weight: float,
) -> Hybrid:
    """`hybrid_loss` with an answer after each glimpse: the reward of a glimpse is what it adds.

    The reward of a glimpse is its gain in log-probability of the correct answer, in nats, and its
    return includes the discounted rewards of later glimpses. A reward only at the end is the same
    for all glimpses, and credit assignment is noisy.

    Args:
        logits: One more than there are steps: the first glimpse was not chosen.
        early_weight: Weight of the mean over the earlier answers, relative to the last one.
        discount: 1 credits a glimpse with all later rewards, 0 only with its own.
    """
    answers = answers_loss(logits, target, early_weight=early_weight)
    gains = answers.log_likelihood.detach().diff(dim=2)
    reinforced = reinforce_loss(
        log_prob, returns_to_go(gains, discount=discount), baseline=baseline
    )
    loss = answers.loss + reinforce_weight * reinforced.policy + reinforced.baseline
    reward = (logits[:, :, -1].argmax(-1) == target).to(logits.dtype)
    return Hybrid(loss, answers.loss, reward, reinforced)


class AnswersLoss(NamedTuple):
    """Log-likelihood of the correct answer after each step."""

    loss: Float[Tensor, ""]
    log_likelihood: Float[Tensor, "sample batch answer"]


def answers_loss(
    logits: Float[Tensor, "sample batch answer d_class"],
    target: Int[Tensor, " batch"],
    *,
    early_weight: float,
) -> AnswersLoss:
    """Cross-entropy of the last answer, plus the weighted mean over earlier ones."""
    targets = target[None, :, None].expand(logits.shape[:3])
    log_likelihood = -functional.cross_entropy(
        logits.flatten(0, 2), targets.flatten(), reduction="none"
    ).view(targets.shape)
    early = log_likelihood[:, :, :-1]
    mean = early.sum() / max(1, early.numel())  # there may be one answer only
    return AnswersLoss(-log_likelihood[:, :, -1].mean() - early_weight * mean, log_likelihood)


def _per_sample(
    values: Float[Tensor, "sample batch step"], mask: Bool[Tensor, "#sample batch step"] | None
) -> Float[Tensor, ""]:
    """Summed over real steps, averaged over samples and batch."""
    counted = values if mask is None else torch.where(mask, values, 0.0)
    return counted.sum(2).mean()
