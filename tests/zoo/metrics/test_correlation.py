"""Against the definitions, and chance against all orders there are."""

import math
import random
from itertools import permutations

import pytest

from saccade.errors import UsageError
from saccade.zoo.metrics.summary_metrics import correlation


def pearson(x, y):
    mx, my = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return top / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


def ranks(x):
    """Equal values share the mean of their places."""
    order = sorted(x)
    return [(2 * order.index(a) + order.count(a) - 1) / 2 for a in x]


def test_it_agrees_with_the_definitions():
    draw = random.Random(4)
    metric = [draw.randint(0, 9) / 10 for _ in range(23)]
    human = [value + draw.random() for value in metric]
    found = correlation(metric, human)
    assert found.pearson == pytest.approx(pearson(metric, human))
    assert found.spearman == pytest.approx(pearson(ranks(metric), ranks(human)))


def test_chance_is_about_the_share_of_orders_that_do_as_well():
    metric, human = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [2.0, 1.0, 4.0, 3.0, 7.0, 5.0, 6.0]
    found = correlation(metric, human)
    orders = [abs(pearson(metric, order)) for order in permutations(human)]
    as_good = sum(value >= abs(found.spearman) - 1e-9 for value in orders) / len(orders)
    assert found.spearman_p == pytest.approx(as_good, abs=0.02)


@pytest.mark.parametrize(
    ("metric", "human", "words"),
    [
        ([1.0, 2.0], [1.0], "2 scores of the metric and 1 scores of people"),
        ([1.0, 2.0], [1.0, 3.0], "2 answers are too few"),
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], r"all scores of the metric are 1\.0"),
        ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], r"all scores of the people are 2\.0"),
    ],
)
def test_scores_that_allow_no_answer_are_refused(metric, human, words):
    with pytest.raises(UsageError, match=words):
        correlation(metric, human)
