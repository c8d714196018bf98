"""Matching moments, judged by a convex solver that sees every prediction, and by text held out."""

import pytest
import torch

from saccade.interp.heads.capture import capture
from saccade.interp.lenses import closed_form, moments
from saccade.interp.lenses import statistics as sums
from saccade.interp.lenses.closed_form import baseline_lens
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.moments import Matching, fisher_information, match_moments
from saccade.interp.lenses.statistics import Covariances, Statistics

LAYER = 2


@pytest.fixture(scope="module")
def told_once(stories, told):
    """The states of some stories, and their sums with the predictions at every position."""
    captured = capture(stories, told[:37])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "PREDICTED_EVERY", 1)
        patch.setattr(sums, "EXPECTED_EVERY", 1)
        statistics = Statistics.empty(stories)
        statistics.add(stories, captured.z, captured.final)
    return captured, statistics


def plain_lens(stories, statistics) -> HeadLens:
    """The lens that hears nothing."""
    lens = HeadLens.start(stories, LAYER)
    lens.weight.data.zero_()
    lens.bias.data.zero_()
    lens.token_bias.data.copy_(baseline_lens(statistics).expand_as(lens.token_bias))
    return lens.requires_grad_(False)


def test_the_steps_end_where_a_convex_solver_that_sees_every_prediction_ends(
    stories, told_once, monkeypatch
):
    captured, statistics = told_once
    monkeypatch.setattr(moments, "RATES", (0.3,) * 200)
    monkeypatch.setattr(moments, "DAMPING", 0.05)
    monkeypatch.setattr(moments, "RIDGE", 1e-6)
    monkeypatch.setattr(moments, "SILENT", 1e-9)
    lens = plain_lens(stories, statistics)
    z = captured.z[LAYER].flatten(0, 1)
    baseline = baseline_lens(statistics)
    match_moments(lens, statistics, LAYER, z, Matching.of(stories, baseline))
    p = stories.unembedding.logits(captured.final.flatten(0, 1)).softmax(-1)

    def divergence(weight, bias):
        logits = (z[:, 3] @ weight + bias) @ stories.unembedding.weight.T + baseline
        return (logits.logsumexp(-1) - (p * logits).sum(-1)).mean()

    found = divergence(lens.weight[3], lens.bias[3])
    weight, bias = (torch.zeros_like(each[3]).requires_grad_() for each in (lens.weight, lens.bias))
    solver = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        solver.zero_grad()
        loss = divergence(weight, bias)
        loss.backward()
        return loss

    solver.step(closure)
    with torch.no_grad():
        best, start = divergence(weight, bias), divergence(weight * 0, bias * 0)
    assert float(start - best) > 0.05
    assert float(start - found) > 0.998 * float(start - best)


def test_the_information_is_autograds_hessian_of_the_partition(stories, gathered):
    weight, baseline = stories.unembedding.weight.double(), baseline_lens(gathered.statistics)

    def partition(f):
        return (weight @ f + baseline).logsumexp(-1)

    hessian = torch.autograd.functional.hessian(partition, torch.zeros(stories.d_model).double())
    found = fisher_information(weight, baseline.exp().double())
    torch.testing.assert_close(found, hessian, atol=1e-5, rtol=1e-4)


def test_moved_z_have_the_covariance_of_the_whole_text(gathered):
    z = gathered.sample.z[LAYER][:211].double()
    zz = Covariances.of(gathered.statistics, LAYER).zz
    moved = moments._recoloured(z, zz)
    assert float(moved.mean(1).abs().max()) < 1e-9
    size = float(zz.abs().max())
    found = moved.transpose(1, 2) @ moved / len(z)
    torch.testing.assert_close(found, zz, atol=5e-3 * size, rtol=0)


def test_on_text_it_never_saw_matching_gains_on_the_mixture_it_starts_from(
    stories, gathered, held_out, judged, monkeypatch
):
    matched = closed_form.solve(stories, gathered.statistics, held_out)
    monkeypatch.setattr(moments, "RATES", ())
    mixed = closed_form.solve(stories, gathered.statistics, held_out)
    gain = {
        name: judged.baseline_kl()
        - torch.stack([judged.kl(each, layer) for layer, each in by_layer.items()]).mean()
        for name, by_layer in (("mixed", mixed), ("matched", matched))
    }
    assert gain["matched"] > 1.02 * gain["mixed"]


def test_the_same_seed_gives_the_same_tokens_and_another_gives_others(
    stories, gathered, monkeypatch
):
    monkeypatch.setattr(moments, "N_TOKENS", 101)
    baseline = baseline_lens(gathered.statistics)
    one, again, other = (Matching.of(stories, baseline, seed=seed).tokens.ids for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
