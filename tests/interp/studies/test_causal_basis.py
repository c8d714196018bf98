"""The causal basis is what its definition asks for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.lens import Lens
from saccade.interp.studies.fidelity.causal_basis import (
    Influence,
    causal_basis,
    direction_variance,
    lens_influence,
    model_influence,
    principal_basis,
    random_basis,
    without,
)
from saccade.interp.studies.fidelity.stage import Stage

WINDOWS, WINDOW, LAYER = 5, 17, 3


@pytest.fixture(scope="module")
def stage(stories, unseen):
    return Stage.of(stories, unseen.windows[:WINDOWS, :WINDOW], LAYER)


@pytest.fixture(scope="module")
def lens(story_lenses):
    return story_lenses.by_layer[LAYER]


@pytest.fixture(scope="module")
def basis(stage, lens):
    return causal_basis(stage, lens)


def is_orthonormal(basis):
    n = basis.shape[1]
    return torch.allclose(
        basis @ basis.transpose(1, 2), torch.eye(n).expand(len(basis), n, n), atol=1e-4
    )


def test_every_basis_is_orthonormal_and_whole(stage, basis):
    d_head = stage.mean.shape[1]
    assert basis.shape == (8, d_head, d_head)
    assert is_orthonormal(basis)
    assert is_orthonormal(random_basis(stage, directions=5, seed=1))
    assert is_orthonormal(principal_basis(stage))


def test_the_first_direction_is_the_one_of_most_influence(stage, lens, basis):
    """No direction among hundreds, drawn at random or as z varies most, has more."""
    best = lens_influence(stage, lens, basis[:, :1]).mean(0)[:, 0]
    for seed in range(40):
        rivals = random_basis(stage, directions=8, seed=seed)
        assert (lens_influence(stage, lens, rivals).mean(0) <= 1.01 * best[:, None]).all()
    own = lens_influence(stage, lens, principal_basis(stage)).mean(0)
    assert (own <= 1.01 * best[:, None]).all()


def test_a_lens_of_one_direction_has_it_first(stories, stage):
    """Its influence is the only one there is."""
    n_heads, d_head = stage.mean.shape
    generator = torch.Generator().manual_seed(0)
    reads = torch.randn(n_heads, d_head, generator=generator)
    reads /= reads.norm(dim=1, keepdim=True)
    writes = torch.randn(n_heads, stories.d_model, generator=generator)
    lens = HeadLens.start(stories, LAYER)
    lens.weight.data.copy_(reads[:, :, None] * writes[:, None])
    lens.requires_grad_(False)
    found = causal_basis(stage, lens, directions=2)
    # Ablating v moves the lens by (reads . v)(v . (mean - z)): v has to be along `reads`,
    # up to where z varies; with z made white it is exactly that.
    assert (found[:, 0] * reads).sum(1).abs().min() > 0.5


def test_influence_falls_along_the_basis(stage, lens, basis):
    influence = lens_influence(stage, lens, basis).mean(0)
    assert (influence.diff(dim=1) <= 1e-6).all()


def test_mean_ablation_is_the_projection_of_the_paper():
    z, mean = torch.randn(3, 2, 5), torch.randn(2, 5)
    v = torch.nn.functional.normalize(torch.randn(2, 5), dim=1)
    found = without(z, v, mean)
    for n in range(3):
        for h in range(2):
            expected = z[n, h] + torch.outer(v[h], v[h]) @ (mean[h] - z[n, h])
            torch.testing.assert_close(found[n, h], expected)
    torch.testing.assert_close((found * v).sum(-1), (mean * v).sum(-1).expand(3, 2))


def test_the_models_influence_is_measured_head_by_head(stage):
    basis = random_basis(stage, directions=2)
    found = model_influence(stage, basis, heads=[4])
    assert found.shape == (WINDOWS, 1, 2)
    # By hand: the second direction of head 4, everywhere.
    z, v = stage.rerun.z[:, :, 4], basis[4, 1]
    z = z + ((stage.mean[4] - z) @ v)[..., None] * v
    p, q = (x.log_softmax(-1) for x in (stage.before, stage.answer(4, z)))
    kl = (p.exp() * (p - q)).sum(-1).view(WINDOWS, -1).mean(1)
    torch.testing.assert_close(found[:, 0, 1], kl, rtol=1e-3, atol=1e-6)


def test_a_lens_that_ranks_as_the_model_does_has_a_correlation_of_one():
    values = torch.rand(WINDOWS, 2, 9)
    found = Influence(values, 3 * values, torch.rand(WINDOWS, 2, 9))
    assert torch.allclose(found.correlations(), torch.ones(1))
    assert torch.allclose(found.partials(), torch.ones(1))


def test_the_variance_along_a_direction_is_numpys(stage):
    basis = random_basis(stage, directions=3, seed=2)
    found = direction_variance(stage, basis).mean(0)
    for head in range(len(basis)):
        along = stage.z[:, head].numpy() @ basis[head].numpy().T  # [n, direction]
        np.testing.assert_allclose(found[head], np.var(along, axis=0), rtol=1e-4)


class Isotropic(Lens):
    """It knows the variance along a direction and nothing else: all directions weigh the same."""

    kind, site = "isotropic", "head"

    @classmethod
    def start(cls, model, layer):
        raise NotImplementedError

    def forward(self, activation, *, tokens=None):
        d_head = activation.shape[-1]
        both = torch.cat([torch.eye(d_head), -torch.eye(d_head)], 1)
        # The other tokens get no logit that changes.
        rest = len(tokens) - 2 * d_head
        return torch.nn.functional.pad(0.1 * activation @ both, (0, rest))


def test_a_lens_that_only_knows_the_variance_has_nothing_left(stage):
    """Its influence is the variance of its tokens' logits, up to how likely they are."""
    uniform = replace(
        stage,
        tokens=stage.tokens._replace(log_weight=torch.zeros_like(stage.tokens.log_weight)),
        before=torch.zeros_like(stage.before),
    )
    every = torch.eye(stage.mean.shape[1]).expand(len(stage.mean), -1, -1)
    variance = direction_variance(stage, every)
    lens = lens_influence(uniform, Isotropic(), every)
    found = Influence(lens, model_influence(stage, every), variance)
    # Which directions matter to the model goes with their variance, and so with this lens.
    assert found.variances()[0].mean() > 0.3
    assert found.correlations()[0].mean() > 0.3  # and a lens that knows nothing else looks faithful
    # Two directions of almost the same variance may change places; in most heads none do.
    assert (found.partials()[0] == 0).float().mean() > 0.5
    assert found.partials()[0].mean().abs() < 0.25
    # A lens that runs the model knows the rest.
    model = Influence(found.model, found.model, variance)
    assert (model.partials()[0] > 0.999).all()


def test_what_a_lens_knows_beyond_the_variance_is_told_from_what_it_does_not():
    """64 directions of many heads: the influence is the variance times an importance."""
    chance = torch.Generator().manual_seed(0)
    variance, importance, other = (
        torch.randn(1, 200, 64, generator=chance).mul(scale).exp() for scale in (2, 1, 1)
    )
    model = variance * importance
    blind = Influence(variance * other, model, variance)
    seeing = Influence(variance * importance * other, model, variance)
    # By plain rank correlation the two are hard to tell apart.
    assert blind.correlations()[0].mean() > 0.7
    assert seeing.correlations()[0].mean() > 0.85
    # Ranks are not linear in ranks: 0.03 remains.
    assert abs(float(blind.partials()[0].mean())) < 0.06
    assert seeing.partials()[0].mean() > 0.6
