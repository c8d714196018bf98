"""AUROC and false alarms, against enumeration and scipy's Mann-Whitney statistic."""

import itertools

import pytest
import torch
from scipy.stats import mannwhitneyu

from saccade.interp.studies.guard.guard_eval import auroc, detection, false_alarms


@pytest.fixture
def scores():
    """Whole numbers, so that there are ties."""
    chance = torch.Generator().manual_seed(0)
    ordinary = torch.randint(0, 11, (17,), generator=chance).double()
    injected = torch.randint(4, 17, (13,), generator=chance).double()
    return ordinary, injected


def test_auroc_is_the_share_of_pairs_in_the_right_order(scores):
    ordinary, injected = scores
    wins = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for low, high in itertools.product(ordinary.tolist(), injected.tolist())
    ]
    assert auroc(ordinary, injected) == pytest.approx(sum(wins) / len(wins))


def test_auroc_is_the_mann_whitney_statistic(scores):
    ordinary, injected = scores
    expected = mannwhitneyu(injected.numpy(), ordinary.numpy()).statistic / (13 * 17)
    assert auroc(ordinary, injected) == pytest.approx(expected)


def test_auroc_of_the_opposite_score_is_the_rest(scores):
    ordinary, injected = scores
    assert auroc(-ordinary, -injected) == pytest.approx(1 - auroc(ordinary, injected))


def test_false_alarms_are_counted_at_the_lowest_threshold_that_catches_enough(scores):
    ordinary, injected = scores
    for recall in (0.2, 0.5, 0.95, 1.0):
        caught = [t for t in injected.tolist() if (injected >= t).double().mean() >= recall]
        expected = float((ordinary >= max(caught)).double().mean())
        assert false_alarms(ordinary, injected, recall=recall) == expected


def test_the_interval_holds_the_auroc_and_is_the_same_for_a_seed(scores):
    found, again = detection(*scores, seed=3), detection(*scores, seed=3)
    assert found == again
    assert found.low < found.auroc < found.high


def test_kinds_that_never_overlap_have_no_false_alarms():
    found = detection(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0]))
    assert found == (1.0, 1.0, 1.0, 0.0)
