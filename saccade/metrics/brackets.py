"""Labelled bracket precision, recall and F1, as EVALB counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from saccade.metrics.references import check_counts


class Bracket(NamedTuple):
    """A constituent: its label and the words it spans, ``start`` to ``stop`` - 1."""

    label: str
    start: int
    stop: int


class BracketScore(NamedTuple):
    """Of 100, over all sentences together."""

    f1: float
    precision: float
    recall: float
    complete: float
    """Sentences whose brackets are all right, and no other."""
    n_sentences: int


def score_brackets(
    gold: Sequence[Iterable[Bracket]], predicted: Sequence[Iterable[Bracket]]
) -> BracketScore:
    """How many brackets of the predicted trees are in the gold trees, and the other way round.

    Black et al., 1991; counted as EVALB with Collins's parameters does: brackets as a multiset,
    summed over the corpus before anything is divided, ADVP and PRT the same label. Whoever makes
    the brackets leaves out tags, the root and punctuation.

    >>> gold = [[Bracket("S", 0, 3), Bracket("NP", 0, 1), Bracket("VP", 1, 3)]]
    >>> guess = [[Bracket("S", 0, 3), Bracket("NP", 0, 2)]]
    >>> score = score_brackets(gold, guess)
    >>> score.precision, round(score.recall, 1), score.f1
    (50.0, 33.3, 40.0)
    """
    check_counts(gold, predicted, "predicted trees", "gold trees")
    matched = n_gold = n_predicted = complete = 0
    for right, guess in zip(gold, predicted, strict=True):
        wanted, found = Counter(map(_equated, right)), Counter(map(_equated, guess))
        matched += (wanted & found).total()
        n_gold += wanted.total()
        n_predicted += found.total()
        complete += wanted == found
    return BracketScore(
        f1=_share(2 * matched, n_gold + n_predicted),
        precision=_share(matched, n_predicted),
        recall=_share(matched, n_gold),
        complete=_share(complete, len(gold)),
        n_sentences=len(gold),
    )


def _equated(bracket: Bracket) -> Bracket:
    return bracket._replace(label="ADVP") if bracket.label == "PRT" else bracket


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
