"""Whether a metric agrees with people: Spearman's and Pearson's correlation, by SciPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from saccade.errors import UsageError
from saccade.metrics.references import check_counts


class Correlation(NamedTuple):
    """From -1 to 1, each with how likely it (or a larger one) would be by chance."""

    spearman: float
    spearman_p: float
    pearson: float
    pearson_p: float


def correlation(metric: Sequence[float], human: Sequence[float]) -> Correlation:
    """Compare what a metric gives each answer with what people gave it.

    >>> correlation([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]).spearman
    1.0
    """
    # Takes a second to import.
    from scipy.stats import pearsonr, spearmanr

    check_counts(human, metric, "scores of the metric", "scores of people")
    if len(metric) < 3:
        raise UsageError(
            f"{len(metric)} answers say nothing about a correlation", hint="give at least 3"
        )
    for name, scores in (("metric", metric), ("people", human)):
        if len(set(scores)) == 1:
            raise UsageError(
                f"all scores of the {name} are {scores[0]}: no correlation is defined",
                hint="give answers of different quality",
            )
    ranks: Any = spearmanr(metric, human)  # SciPy does not say what it returns
    values: Any = pearsonr(metric, human)
    return Correlation(
        float(ranks.statistic), float(ranks.pvalue), float(values.statistic), float(values.pvalue)
    )
