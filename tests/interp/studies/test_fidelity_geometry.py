"""The metrics of fidelity agree with their definitions."""

import numpy as np
import scipy.stats
import torch

from saccade.interp.lenses.held_out import sample_tokens
from saccade.interp.studies.fidelity.geometry import (
    agreement,
    divergence,
    estimate,
    partial_spearman,
    resampled,
    resampled_means,
    spearman,
)

N, TOKENS = 7, 13


def logits(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_divergence_is_torchs_own():
    before, after = logits(0, N, TOKENS), logits(1, N, TOKENS)
    expected = torch.nn.functional.kl_div(
        after.log_softmax(-1), before.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    torch.testing.assert_close(divergence(before, after, torch.zeros(TOKENS)), expected)


def test_sampled_tokens_give_the_divergence_of_all_of_them():
    """1,500 of 5,000 tokens, most of the mass among them for certain."""
    before = 3 * logits(0, N, 5000)
    after = before + 0.3 * logits(1, N, 5000)
    exact = divergence(before, after, torch.zeros(5000))
    p = before.softmax(-1)
    tokens = sample_tokens(
        p.amax(0), p.mean(0), n_tokens=1500, generator=torch.Generator().manual_seed(0)
    )
    found = divergence(before[:, tokens.ids], after[:, tokens.ids], tokens.log_weight)
    torch.testing.assert_close(found, exact, rtol=0.15, atol=0.0)
    assert (found >= 0).all()


def test_agreement_is_the_weighted_correlation_token_by_token():
    lens_change, before, after = (logits(seed, N, TOKENS).double() for seed in range(3))
    found = agreement(lens_change, before, after, log_weight=torch.zeros(TOKENS).double()).cosine()
    for row in range(N):
        p, q = before[row].softmax(-1), after[row].softmax(-1)
        w = [(float(a) + float(b)) / 2 for a, b in zip(p, q, strict=True)]
        s = [float(x) for x in lens_change[row].log_softmax(-1)]
        t = [float(x) for x in (after[row] - before[row]).log_softmax(-1)]
        mean_s = sum(a * b for a, b in zip(w, s, strict=True))
        mean_t = sum(a * b for a, b in zip(w, t, strict=True))
        st = sum(a * (b - mean_s) * (c - mean_t) for a, b, c in zip(w, s, t, strict=True))
        ss = sum(a * (b - mean_s) ** 2 for a, b in zip(w, s, strict=True))
        tt = sum(a * (c - mean_t) ** 2 for a, c in zip(w, t, strict=True))
        assert abs(float(found[row]) - st / (ss * tt) ** 0.5) < 1e-9


def test_a_proportional_change_with_any_offset_agrees_fully():
    before, after = logits(0, N, TOKENS), logits(1, N, TOKENS)
    none = torch.zeros(TOKENS)
    truth = agreement(0.2 * (after - before) + 5.0, before, after, log_weight=none).cosine()
    lie = agreement(before - after, before, after, log_weight=none).cosine()
    torch.testing.assert_close(truth, torch.ones(N))
    torch.testing.assert_close(lie, -torch.ones(N))
    silent = agreement(torch.zeros(N, TOKENS), before, after, log_weight=none).cosine()
    assert (silent == 0).all()


def test_spearman_is_scipys():
    a, b = logits(0, 3, TOKENS), logits(1, 3, TOKENS)
    expected = [float(scipy.stats.spearmanr(x, y).statistic) for x, y in zip(a, b, strict=True)]
    torch.testing.assert_close(spearman(a, b), torch.tensor(expected))


def test_ties_share_a_rank_and_a_constant_has_no_correlation():
    chance = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 4, (3, TOKENS), generator=chance).double() for _ in range(2))
    expected = [float(scipy.stats.spearmanr(x, y).statistic) for x, y in zip(a, b, strict=True)]
    torch.testing.assert_close(spearman(a, b), torch.tensor(expected).double())
    assert spearman(torch.ones(TOKENS), torch.arange(TOKENS).float()) == 0


def test_partial_correlation_is_that_of_the_residuals_of_the_ranks():
    """Ranks regressed on those of the third by least squares; Pearson's correlation of the rest."""
    a, b, given = (logits(seed, 3, TOKENS).numpy() for seed in range(3))
    b = b + 0.8 * given
    a = a + 0.8 * given
    for row in range(3):
        x, y, z = (scipy.stats.rankdata(each[row]) for each in (a, b, given))
        rest = [each - np.polyval(np.polyfit(z, each, 1), z) for each in (x, y)]
        expected = scipy.stats.pearsonr(*rest).statistic
        found = partial_spearman(*(torch.from_numpy(each[row]) for each in (a, b, given)))
        assert abs(float(found) - expected) < 1e-6


def test_nothing_is_left_of_what_the_third_explains():
    given, other = logits(0, 3, TOKENS), logits(1, 3, TOKENS)
    assert (partial_spearman(given.exp(), other, given) == 0).all()
    assert (partial_spearman(other, -given, given) == 0).all()
    assert (partial_spearman(given, given, other) > 0.999).all()


def test_an_interval_contains_the_estimate_and_narrows_with_more_text():
    values = 0.5 + logits(0, 400, 1)
    few, many = (estimate(resampled_means(values[:n])[:, 0]) for n in (25, 400))
    for found, n in ((few, 25), (many, 400)):
        assert found.low < found.value < found.high
        # The textbook interval of a mean.
        error = float(values[:n].std()) / n**0.5
        assert abs((found.high - found.low) / (2 * 1.96 * error) - 1) < 0.15
    assert resampled(5).sum(1).unique().tolist() == [5.0]
