"""Learning from rewards for actions that were sampled.

Williams, 1992 (https://doi.org/10.1007/BF00992696): the gradient of the expected return is
``E[return * grad log p(actions)]``, and the mean over M sampled sequences of actions estimates it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

# What a reward is compared with, so that the gradient of REINFORCE is less noisy.
#
# A baseline must not depend on the action it judges; then it changes the noise of the gradient and
# not its mean.


class MovingAverage(nn.Module):
    """The mean of the returns so far, of which each new batch makes up a tenth.

    Xu et al., 2015 (https://arxiv.org/abs/1502.03044), section 4.1: ``b = 0.9 b + 0.1 return``.
    Theirs starts from zero and takes some batches to arrive; we divide by the weight of what has
    been seen, as Adam does. It is a buffer, so a resumed run goes on with it.
    """

    average: Tensor
    seen: Tensor

    def __init__(self, *, rate: float = 0.1) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self) -> Float[Tensor, ""]:
        """The average of what was seen; zero before anything was."""
        return self.average / self.seen.clamp_min(self.rate)

    @torch.no_grad()
    def update(self, returns: Float[Tensor, "*any"]) -> None:
        """Take in the returns of a batch, after they were judged."""
        self.average.lerp_(returns.mean(), self.rate)
        self.seen.lerp_(torch.ones_like(self.seen), self.rate)


class LearnedBaseline(nn.Module):
    """Predict the return from the state of the network at each step.

    Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), section 3: trained by the squared error
    that `reinforce_loss` adds. It reads the state without sending a gradient back, because the
    network should serve the task and not its own critic.
    """

    def __init__(self, d_hidden: int) -> None:
        super().__init__()
        self.predict = nn.Linear(d_hidden, 1)

    def forward(self, hidden: Float[Tensor, "*at d_hidden"]) -> Float[Tensor, "*at"]:
        """The return to be expected."""
        return self.predict(hidden.detach())[..., 0]


class LabelledBaseline(nn.Module):
    """Predict the return at each step for each answer that might be the right one.

    Which answer is right is known while a system learns, and tells more of the return than the
    state alone: how likely the right one is already. It does not depend on the action, so the mean
    of the gradient stays what it is. Like `LearnedBaseline` it sends no gradient back.
    """

    def __init__(self, d_hidden: int, n_classes: int) -> None:
        super().__init__()
        self.predict = nn.Linear(d_hidden, n_classes)

    def forward(self, hidden: Float[Tensor, "*at d_hidden"]) -> Float[Tensor, "*at d_class"]:
        """The return to be expected if each class is the right one."""
        return self.predict(hidden.detach())


def of_right_answer(
    expected: Float[Tensor, "sample batch step d_class"], right: Int[Tensor, "batch step"]
) -> Float[Tensor, "sample batch step"]:
    """What a `LabelledBaseline` expects at each step, knowing which answer is the right one."""
    return expected.gather(3, right[None, :, :, None].expand(*expected.shape[:3], 1))[..., 0]


class Reinforced(NamedTuple):
    """The parts of a loss that rewards sampled actions."""

    loss: Float[Tensor, ""]
    """To minimise: ``policy - entropy_weight * entropy + baseline``."""
    policy: Float[Tensor, ""]
    """Its gradient estimates that of minus the expected return; its value means nothing."""
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
    """Make actions that brought more than the baseline likelier, the others less likely.

    The gradient goes to the log-probabilities only, not through the returns; and from the squared
    error to the baseline only. Sampled actions must have been detached before their log-probability
    was taken, else a Gaussian policy gets no gradient at all.

    Args:
        log_prob: Of each action. M samples of one example stand on the first axis.
        returns: What followed from an action: one number for all steps, or one each
            (`returns_to_go`).
        baseline: Compared with the returns; any shape that broadcasts against them.
        entropy: Of the distribution that each action was drawn from.
        entropy_weight: How much it is worth to stay undecided.
        mask: True where a step was really taken.
    """
    returns = returns.detach()
    compared = torch.zeros_like(returns) if baseline is None else baseline
    advantage = (returns - compared.detach()).expand_as(log_prob)
    entropies = torch.zeros_like(log_prob) if entropy is None else entropy
    policy = -_per_sample(advantage * log_prob, mask)
    undecided = _per_sample(entropies, mask)
    error = (returns - compared).square().expand_as(log_prob)
    n_steps = _per_sample(torch.ones_like(log_prob), mask).clamp_min(1e-6)  # none may be taken
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
    """What is still to come at each step: an action cannot have earned what came before it.

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
    """A classifier that chooses where to look: learnt from its label and from its reward."""

    loss: Float[Tensor, ""]
    supervised: Float[Tensor, ""]
    """Cross-entropy of the last step's answer; and of earlier ones, where they are taught."""
    reward: Float[Tensor, "sample batch"]
    """1 where the last answer was right."""
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
    """Train the answer of the last step by its label and the looks before it by reward.

    Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), section 3, "hybrid supervised loss". The
    paper does not say how the two are weighed; a hundredth for the reward is what the public
    reimplementations that reach its numbers use. The baseline's own error is not weighed.
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
    """`hybrid_loss` where an answer is given after each look: each look is paid for what it adds.

    The reward of a look is by how many nats it makes the right answer likelier, and its return has
    the rewards of later looks too, discounted. A reward at the very end is the same for all looks,
    and which of them earned it is lost in the noise of the others.

    Args:
        logits: One more than there are steps: the first look was not chosen.
        early_weight: How much the mean over the earlier answers counts beside the last one.
        discount: 1 pays a look for all that comes after it, 0 for what it shows itself.
    """
    taught = answers_loss(logits, target, early_weight=early_weight)
    gains = taught.log_likelihood.detach().diff(dim=2)
    reinforced = reinforce_loss(
        log_prob, returns_to_go(gains, discount=discount), baseline=baseline
    )
    loss = taught.loss + reinforce_weight * reinforced.policy + reinforced.baseline
    reward = (logits[:, :, -1].argmax(-1) == target).to(logits.dtype)
    return Hybrid(loss, taught.loss, reward, reinforced)


class Taught(NamedTuple):
    """How likely the right answer was, after each step."""

    loss: Float[Tensor, ""]
    log_likelihood: Float[Tensor, "sample batch answer"]


def answers_loss(
    logits: Float[Tensor, "sample batch answer d_class"],
    target: Int[Tensor, " batch"],
    *,
    early_weight: float,
) -> Taught:
    """Cross-entropy of the last answer, and a part of the mean over those before it."""
    targets = target[None, :, None].expand(logits.shape[:3])
    log_likelihood = -functional.cross_entropy(
        logits.flatten(0, 2), targets.flatten(), reduction="none"
    ).view(targets.shape)
    early = log_likelihood[:, :, :-1]
    mean = early.sum() / max(1, early.numel())  # there may be one answer only
    return Taught(-log_likelihood[:, :, -1].mean() - early_weight * mean, log_likelihood)


def _per_sample(
    values: Float[Tensor, "sample batch step"], mask: Bool[Tensor, "#sample batch step"] | None
) -> Float[Tensor, ""]:
    """Summed over the steps that count, averaged over samples and batch."""
    counted = values if mask is None else torch.where(mask, values, 0.0)
    return counted.sum(2).mean()
