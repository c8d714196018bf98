"""ROUGE-N and ROUGE-L."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from saccade.metrics.references import References, by_sentence, plain_words


class Overlap(NamedTuple):
    """From 0 to 1, the mean over all sentences."""

    f1: float
    precision: float
    recall: float


class Rouge(NamedTuple):
    """Overlap of words, of word pairs, and of the longest common subsequence."""

    rouge1: Overlap
    rouge2: Overlap
    rouge_l: Overlap


def rouge(hypotheses: Sequence[str], references: References) -> Rouge:
    """How much of the references is in the answers.

    Lin, 2004 (https://aclanthology.org/W04-1013), with the F1 of both directions; of several
    references the one with the best F1 counts. Words are lower-cased, without punctuation and not
    stemmed. Own code because Google's ``rouge-score`` has had no release since 2022 and no wheel;
    both give the same numbers on English text.

    >>> rouge(["the cat was found under the bed"], ["the cat was under the bed"]).rouge1.recall
    1.0
    """
    lists = by_sentence(hypotheses, references)
    columns: list[list[Overlap]] = [[], [], []]
    for hypothesis, held in zip(hypotheses, lists, strict=True):
        words = plain_words(hypothesis)
        scored = [_overlaps(words, plain_words(each)) for each in held]
        for column, kind in zip(columns, zip(*scored, strict=True), strict=True):
            column.append(max(kind))  # F1 comes first
    return Rouge(*(_mean(column) for column in columns))


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest sequence of words that both hold in this order.

    >>> longest_common("a b c d".split(), "b x d".split())
    2
    """
    row = [0] * (len(second) + 1)
    for word in first:
        corner = 0
        for j, other in enumerate(second, start=1):
            above = row[j]
            row[j] = corner + 1 if word == other else max(above, row[j - 1])
            corner = above
    return row[-1]


def _overlaps(words: list[str], reference: list[str]) -> tuple[Overlap, Overlap, Overlap]:
    one, two = (_ngram_overlap(words, reference, n) for n in (1, 2))
    common = longest_common(words, reference)
    return one, two, _overlap(common, len(words), len(reference))


def _ngram_overlap(words: list[str], reference: list[str], n: int) -> Overlap:
    mine, theirs = (
        Counter(zip(*(held[k:] for k in range(n)), strict=False)) for held in (words, reference)
    )
    return _overlap((mine & theirs).total(), mine.total(), theirs.total())


def _overlap(common: int, n: int, m: int) -> Overlap:
    if not common:
        return Overlap(0.0, 0.0, 0.0)
    precision, recall = common / n, common / m
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


def _mean(column: list[Overlap]) -> Overlap:
    return Overlap(*(sum(values) / len(column) for values in zip(*column, strict=True)))
