"""The bound of a variational autoencoder: what it costs to name the latents, and what they miss.

Kingma and Welling, 2014 (https://arxiv.org/abs/1312.6114), equation 7::

    -log p(x)  <=  KL(q(z | x) || p(z)) - E_q [ log p(x | z) ]

Here p(z) is the standard normal and p(x | z) gives each pixel a probability of being ink. With
several latents in a row the costs add up, as in Gregor et al., 2015
(https://arxiv.org/abs/1502.04623), equations 9 to 12.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


class Elbo(NamedTuple):
    """The parts of the bound, in nats an example, averaged over the batch."""

    loss: Float[Tensor, ""]
    """To minimise: minus the bound."""
    reconstruction: Float[Tensor, ""]
    latent: Float[Tensor, ""]


def gaussian_kl(
    mean: Float[Tensor, "*batch d_latent"], log_sigma: Float[Tensor, "*batch d_latent"]
) -> Float[Tensor, "*batch"]:
    """What it costs to draw from ``N(mean, sigma^2)`` instead of N(0, 1), in nats.

    ``1/2 sum_d (mean^2 + sigma^2 - log sigma^2 - 1)``: the sum is over the numbers of a latent.

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
    """The bound for pixels that are ink or not.

    Args:
        logits: Log-odds of ink.
        images: 0 or 1.
        kl: `gaussian_kl` of each latent.
    """
    summed = functional.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    reconstruction, latent = summed / len(images), kl.sum(1).mean()
    return Elbo(reconstruction + latent, reconstruction, latent)
