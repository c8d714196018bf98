"""Held-out figures, judged by torch's own KL over the whole vocabulary."""

import copy

import pytest
import torch
from torch.nn import functional

from saccade.interp.lenses.closed_form import baseline_lens, solve
from saccade.interp.lenses.held_out import HeldOut

LAYER = 2


@pytest.fixture(scope="module")
def lens(stories, gathered, held_out):
    return solve(stories, gathered.statistics, held_out)[LAYER]


def exact(model, sample, logits):
    """KL(model || lens) for each head, averaged over the positions."""
    target = model.hf.lm_head(sample.final).log_softmax(-1)[:, None].expand_as(logits)
    every = functional.kl_div(logits.log_softmax(-1), target, reduction="none", log_target=True)
    return every.sum(-1).mean(0)


def test_with_all_tokens_the_figure_is_the_exact_kl(stories, judged, lens):
    expected = exact(stories, judged.sample, lens(judged.sample.z[LAYER]))
    torch.testing.assert_close(judged.kl(lens, LAYER), expected, atol=1e-4, rtol=1e-4)


def test_the_baseline_lens_is_judged_likewise(stories, judged, gathered):
    baseline = baseline_lens(gathered.statistics).expand(len(judged.sample), 1, -1)
    expected = exact(stories, judged.sample, baseline)
    assert judged.baseline_kl() == pytest.approx(float(expected), abs=1e-4)


def test_a_part_of_the_vocabulary_gives_nearly_the_same(stories, judged, gathered, lens):
    baseline = baseline_lens(gathered.statistics)
    part = HeldOut.of(stories, judged.sample, baseline, seed=1, n_tokens=300)
    assert len(part.tokens.ids) == 300
    assert (part.kl(lens, LAYER) - judged.kl(lens, LAYER)).abs().max() < 0.01
    assert part.baseline_kl() == pytest.approx(judged.baseline_kl(), abs=0.01)
    again = HeldOut.of(stories, judged.sample, baseline, seed=1, n_tokens=300)
    other = HeldOut.of(stories, judged.sample, baseline, seed=2, n_tokens=300)
    assert torch.equal(part.tokens.ids, again.tokens.ids)
    assert not torch.equal(part.tokens.ids, other.tokens.ids)


def test_a_baseline_added_to_all_logits_changes_nothing(stories, judged, gathered, lens):
    """Also where few words stand for all, whose probabilities only add up to one on average."""
    part = HeldOut.of(stories, judged.sample, baseline_lens(gathered.statistics), n_tokens=64)
    assert (part.teacher.sum(-1) - 1).abs().max() > 0.1
    moved = copy.deepcopy(lens)
    moved.token_bias += 5.0
    torch.testing.assert_close(part.kl(moved, LAYER), part.kl(lens, LAYER), atol=1e-4, rtol=1e-4)
