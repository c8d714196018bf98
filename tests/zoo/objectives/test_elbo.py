"""The variational bound against sums over all it stands for."""

import math

import torch
from torch.distributions import Normal, kl_divergence

from saccade.zoo.objectives.variational import bernoulli_elbo, gaussian_kl

BATCH, STEPS, D_LATENT, HEIGHT, WIDTH = 2, 3, 5, 7, 11


def test_the_cost_of_a_latent_is_torchs_divergence_summed_over_its_numbers():
    mean, log_sigma = torch.randn(BATCH, D_LATENT), torch.randn(BATCH, D_LATENT)
    exact = kl_divergence(Normal(mean, log_sigma.exp()), Normal(0.0, 1.0)).sum(-1)
    torch.testing.assert_close(gaussian_kl(mean, log_sigma), exact)


def test_over_the_steps_it_is_half_the_sums_less_half_the_count():
    """The seed's formula, with its missing sum over the numbers of a latent put back."""
    mean, log_sigma = torch.randn(STEPS, D_LATENT), torch.randn(STEPS, D_LATENT)
    variance = log_sigma.exp().square()
    halves = 0.5 * (mean.square() + variance - variance.log()).sum()
    expected = halves - STEPS * D_LATENT / 2
    torch.testing.assert_close(gaussian_kl(mean, log_sigma).sum(), expected)


def test_the_bound_is_a_sum_over_pixels_and_steps_and_a_mean_over_images():
    logits = torch.randn(BATCH, HEIGHT, WIDTH)
    images = (torch.rand(BATCH, HEIGHT, WIDTH) < 0.3).float()
    kl = torch.rand(BATCH, STEPS)
    found = bernoulli_elbo(logits, images, kl=kl)
    total = 0.0
    for ink, shown in zip(logits.flatten().tolist(), images.flatten().tolist(), strict=True):
        p = 1 / (1 + math.exp(-ink))
        total -= math.log(p if shown else 1 - p)
    assert math.isclose(found.reconstruction.item(), total / BATCH, rel_tol=1e-5)
    torch.testing.assert_close(found.latent, kl.sum() / BATCH)
    torch.testing.assert_close(found.loss, found.reconstruction + found.latent)


def test_it_bounds_the_likelihood_of_a_model_that_can_be_summed():
    """One pixel whose log-odds are the latent: -log p(1) = log 2 whatever the code says."""
    mean, log_sigma = torch.full((1, 1), 0.7), torch.full((1, 1), -0.2)
    grid = torch.linspace(-9, 9, 20_001)
    weights = Normal(mean[0], log_sigma.exp()[0]).log_prob(grid).exp() * (grid[1] - grid[0])
    cost = -(weights * torch.nn.functional.logsigmoid(grid)).sum()
    assert gaussian_kl(mean, log_sigma)[0] + cost > math.log(2)
