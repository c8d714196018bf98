"""Tells prompts with a request in them from those without, by their most telling stretch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import softplus

# Median absolute deviations of a normal variable are this much smaller than its deviation.
NORMAL_MAD = 1.4826
# Deviations beyond which a single feature counts no more: one odd token is not an attack.
FARTHEST = 5.0
# Of the squared weights, beside a mean loss. Tried with tasks and topics of the fitting side left
# out: a third or three times of it is as good.
RIDGE = 0.1
STEPS = 100  # of the optimiser; the loss has come to rest long before


@dataclass(frozen=True)
class Discriminant:
    """A linear score of a stretch, learnt from prompts of which one stretch is enough.

    Multiple-instance logistic regression: which stretch of a prompt is the request is not told.
    The log odds of a prompt are the soft maximum of those of its stretches, as in Ray and Craven,
    2005 (https://doi.org/10.1145/1102351.1102439), section 3. Unlike there it is the plain
    log-sum-exp; features are standardised by median and deviation of ordinary stretches, and
    clipped.
    """

    centre: Float[Tensor, " feature"]
    scale: Float[Tensor, " feature"]
    mean: Float[Tensor, " feature"]
    """Of ordinary stretches, standardised and clipped."""
    weight: Float[Tensor, " feature"]
    bias: float

    @classmethod
    def fit(
        cls, prompts: Sequence[Float[Tensor, "_ feature"]], has_request: Bool[Tensor, " prompt"]
    ) -> Discriminant:
        """The least ridged logistic loss, by L-BFGS from zero on.

        Args:
            prompts: The stretches of each.
        """
        sizes = torch.tensor([len(each) for each in prompts])
        owner = torch.arange(len(prompts)).repeat_interleave(sizes)
        points = torch.cat(list(prompts)).float()
        ordinary = points[~has_request[owner]]
        centre = ordinary.median(0).values
        spread = (ordinary - centre).abs().median(0).values * NORMAL_MAD
        # A feature that never changes is left as it is; any change of it would be infinite.
        scale = torch.where(spread > 0, spread, torch.ones_like(spread))
        points.sub_(centre).div_(scale).clamp_(-FARTHEST, FARTHEST)  # in place: there are many
        weight, bias = _regress(points, owner, has_request)
        mean = points[~has_request[owner]].mean(0)
        return cls(centre, scale, mean, weight, bias)

    def shares(self, points: Float[Tensor, "n feature"]) -> Float[Tensor, "n feature"]:
        """What each feature adds to the log odds, from the mean of ordinary stretches on."""
        away = _standard(points.float(), self.centre, self.scale) - self.mean
        return away * self.weight

    def log_odds(self, points: Float[Tensor, "n feature"]) -> Float[Tensor, " n"]:
        """Of each stretch, that its prompt has a request in it."""
        return _standard(points.float(), self.centre, self.scale) @ self.weight + self.bias


def soft_maximum(
    scores: Float[Tensor, " point"], owner: Int[Tensor, " point"], *, n: int
) -> Float[Tensor, " prompt"]:
    """``log sum exp`` of the scores of each prompt.

    Args:
        owner: Whose score each is; in order.

    >>> soft_maximum(torch.tensor([0.0, 0.0, 7.0]), torch.tensor([0, 0, 1]), n=2)
    tensor([0.6931, 7.0000])
    """
    most = scores.new_full((n,), -torch.inf).scatter_reduce(0, owner, scores.detach(), "amax")
    sums = torch.zeros_like(most).index_add(0, owner, (scores - most[owner]).exp())
    return most + sums.log()


def _regress(
    points: Float[Tensor, "point feature"],
    owner: Int[Tensor, " point"],
    has_request: Bool[Tensor, " prompt"],
) -> tuple[Float[Tensor, " feature"], float]:
    sign = torch.where(has_request, 1.0, -1.0)
    weight = torch.zeros(points.shape[1], requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        odds = soft_maximum(points @ weight + bias, owner, n=len(sign))
        loss = softplus(-sign * odds).mean() + RIDGE * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(closure)  # pyright: ignore[reportArgumentType]
    return weight.detach(), float(bias.detach())


def _standard(points: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
    return ((points - centre) / scale).clamp(-FARTHEST, FARTHEST)
