"""The variational bound for hard attention, and the ELBO of a variational autoencoder.

With a location l drawn from ``p(l | x)`` the likelihood of the answer is a sum over all locations,
and its logarithm is at least the mean of the logarithms (Jensen)::

    log sum_l p(l | x) p(y | l, x)  >=  sum_l p(l | x) log p(y | l, x)

Ba et al., 2015 (https://arxiv.org/abs/1412.7755), section 4, and Xu et al., 2015
(https://arxiv.org/abs/1502.03044), section 4.1. Where locations can be enumerated the bound is
computed exactly; otherwise it is sampled, and its gradient is then that of REINFORCE with the
reward ``log p(y | l, x)``, plus the plain gradient of that reward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from saccade.zoo.objectives.reinforce import Reinforced, reinforce_loss, returns_to_go

# The bound of a variational autoencoder: KL of the latents plus reconstruction error.
#
# Kingma and Welling, 2014 (https://arxiv.org/abs/1312.6114), equation 7::
#
# -log p(x)  <=  KL(q(z | x) || p(z)) - E_q [ log p(x | z) ]
#
# Here p(z) is the standard normal and p(x | z) gives each pixel a probability of being 1. With
# several latents in a row the costs add up, as in Gregor et al., 2015
# (https://arxiv.org/abs/1502.04623), equations 9 to 12.


class Elbo(NamedTuple):
    """The parts of the bound, in nats per example, averaged over the batch."""

    loss: Float[Tensor, ""]
    """To minimise: minus the bound."""
    reconstruction: Float[Tensor, ""]
    latent: Float[Tensor, ""]


def gaussian_kl(
    mean: Float[Tensor, "*batch d_latent"], log_sigma: Float[Tensor, "*batch d_latent"]
) -> Float[Tensor, "*batch"]:
    """KL divergence of ``N(mean, sigma^2)`` from N(0, 1), in nats.

    ``1/2 sum_d (mean^2 + sigma^2 - log sigma^2 - 1)``: summed over the dimensions of a latent.

    >>> import torch
    >>> gaussian_kl(torch.tensor([1.0, 0.0]), torch.zeros(2))
    tensor(0.5000)
    """
    variance = (2 * log_sigma).exp()
    return 0.5 * (mean.square() + variance - 2 * log_sigma - 1).sum(-1)


def bernoulli_elbo(
    logits: Float[Tensor, "batch height width"],
    images: Float[Tensor, "batch height width"],
    *,
    kl: Float[Tensor, "batch step"],
) -> Elbo:
    """The bound for binary pixels.

    Args:
        logits: Log-odds of 1.
        images: 0 or 1.
        kl: `gaussian_kl` of each latent.
    """
    summed = functional.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    reconstruction, latent = summed / len(images), kl.sum(1).mean()
    return Elbo(reconstruction + latent, reconstruction, latent)


def marginal_log_likelihood(
    log_location: Float[Tensor, "*batch location"], log_likelihood: Float[Tensor, "*batch location"]
) -> Float[Tensor, "*batch"]:
    """The left side: the exact ``log p(y | x)``, by a sum over all locations."""
    return (log_location + log_likelihood).logsumexp(-1)


def exact_bound(
    log_location: Float[Tensor, "*batch location"], log_likelihood: Float[Tensor, "*batch location"]
) -> Float[Tensor, "*batch"]:
    """The right side, by a sum over all locations; a location of probability zero adds nothing."""
    possible = log_location > -torch.inf
    likelihood = log_likelihood.masked_fill(~possible, 0.0)  # it may be infinite there
    return (log_location.exp() * likelihood).sum(-1)


class SampledBound(NamedTuple):
    """An estimate of the bound from M sampled sequences of locations."""

    loss: Float[Tensor, ""]
    """To minimise; its gradient estimates that of minus the bound."""
    bound: Float[Tensor, ""]
    """The estimate of the bound itself, without gradient."""
    reinforced: Reinforced


def sampled_bound(
    log_location: Float[Tensor, "sample batch step"],
    log_likelihood: Float[Tensor, "sample batch #step"],
    *,
    baseline: Float[Tensor, "..."] | None = None,
    entropy: Float[Tensor, "sample batch step"] | None = None,
    entropy_weight: float = 0.0,
    reward_weight: float = 1.0,
    discount: float = 1.0,
    mask: Bool[Tensor, "#sample batch step"] | None = None,
) -> SampledBound:
    """Estimate the bound and its gradient from sampled locations.

    ``1/M sum_i [ grad log p(y | l_i) + r (log p(y | l_i) - b) grad log p(l_i) + e grad H ]``, with
    the two weights r and e of Xu et al.

    Args:
        log_location: Log-probability of each sampled location.
        log_likelihood: Of the answer: one number after all locations, or one after each; then a
            location is credited only with what came after it, which is less noisy.
        discount: Below 1 later terms count less; the gradient is then less noisy still, but no
        longer that of the bound.
        mask: True where a location was sampled. Default: everywhere.
    """
    total = log_likelihood.sum(2).mean()
    reinforced = reinforce_loss(
        log_location,
        returns_to_go(log_likelihood, discount=discount),
        baseline=baseline,
        entropy=entropy,
        mask=mask,
    )
    chosen = reward_weight * reinforced.policy - entropy_weight * reinforced.entropy
    return SampledBound(-total + chosen + reinforced.baseline, total.detach(), reinforced)
