"""LEPOR: length penalty, precision, position difference penalty and recall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from saccade.metrics.references import References, by_sentence, plain_words

# How many neighbours on each side are looked at where a word could be matched in several places.
_CONTEXT = 2


class Lepor(NamedTuple):
    """From 0 to 1: the product of the three factors, each a mean over all sentences as well."""

    score: float
    length_penalty: float
    position_penalty: float
    harmonic: float
    """Of precision and recall."""


def lepor(
    hypotheses: Sequence[str],
    references: References,
    *,
    recall: float = 9.0,
    precision: float = 1.0,
) -> Lepor:
    """Lengths, matched words and their order, all in one number.

    Han, Wong and Chao, 2012 (https://aclanthology.org/C12-2044), equations 1 to 9:
    ``LEPOR = LP x NPosPenal x Harmonic(recall R, precision P)`` for each sentence, then the mean
    (their "LEPOR-A"). Their own words are split by language; here they are lower-cased and without
    punctuation. Of several references the best counts. No library that is kept up has it.

    Args:
        recall: weight of recall against precision; 9 to 1 is what the paper found for most pairs.

    >>> lepor(["a cat sat"], ["a cat sat"]).score
    1.0
    """
    lists = by_sentence(hypotheses, references)
    scores = [
        max(
            sentence_lepor(plain_words(hypothesis), plain_words(each), recall, precision)
            for each in held
        )
        for hypothesis, held in zip(hypotheses, lists, strict=True)
    ]
    return Lepor(*(sum(column) / len(scores) for column in zip(*scores, strict=True)))


def sentence_lepor(
    hypothesis: Sequence[str], reference: Sequence[str], recall: float, precision: float
) -> Lepor:
    """LEPOR of one sentence in words."""
    if not hypothesis or not reference:
        return Lepor(*([float(hypothesis == reference)] * 4))
    n, m = len(hypothesis), len(reference)
    length_penalty = math.exp(1 - max(n, m) / min(n, m))
    aligned = align(hypothesis, reference)
    # Places count from 1, so that the last word of either sentence is at 1.
    differences = sum(abs((i + 1) / n - (j + 1) / m) for i, j in aligned.items())
    position_penalty = math.exp(-differences / n)
    harmonic = 0.0
    if aligned:
        p, r = len(aligned) / n, len(aligned) / m
        harmonic = (recall + precision) / (recall / r + precision / p)
    score = length_penalty * position_penalty * harmonic
    return Lepor(score, length_penalty, position_penalty, harmonic)


def align(hypothesis: Sequence[str], reference: Sequence[str]) -> dict[int, int]:
    """Which word of the reference each word of the answer is, each used once.

    The paper's figure 1: of several equal words take the one with the most equal neighbours, and of
    those the one nearest in relative place.

    >>> align(["a", "b", "a"], ["a", "a", "b"])
    {0: 1, 1: 2, 2: 0}
    """
    free = set(range(len(reference)))
    found: dict[int, int] = {}
    for i, word in enumerate(hypothesis):
        same = [j for j in sorted(free) if reference[j] == word]
        if same:
            found[i] = min(same, key=lambda j: _unlike(hypothesis, reference, i, j))
            free.remove(found[i])
    return found


def _unlike(
    hypothesis: Sequence[str], reference: Sequence[str], i: int, j: int
) -> tuple[int, float]:
    near = [k for k in range(-_CONTEXT, _CONTEXT + 1) if k]
    equal = sum(
        0 <= i + k < len(hypothesis)
        and 0 <= j + k < len(reference)
        and hypothesis[i + k] == reference[j + k]
        for k in near
    )
    return -equal, abs(i / len(hypothesis) - j / len(reference))
