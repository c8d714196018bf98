"""ROUGE, CIDEr, embedding similarity, and the correlation of a metric with human scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from rapidfuzz.distance import LCSseq
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from saccade.errors import UsageError
from saccade.zoo.metrics.translation_metrics import (
    References,
    by_sentence,
    check_counts,
    plain_words,
)

# ROUGE-N and ROUGE-L.


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
    """N-gram and subsequence overlap of answers with their references.

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
    return LCSseq.similarity(first, second)


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


# CIDEr and CIDEr-D: n-grams weighted by tf-idf.

ORDERS = 4
# Section 5 of the paper, for CIDEr-D: the width of the penalty on a difference in length.
_SIGMA = 6.0

VARIANTS = ("cider-d", "cider")
_Ngrams = Counter[tuple[str, ...]]


class Cider(NamedTuple):
    """The mean over all sentences: 0 to 10 for CIDEr-D, 0 to 1 for plain CIDEr."""

    score: float
    by_sentence: tuple[float, ...]


def cider(hypotheses: Sequence[str], references: References, *, variant: str = "cider-d") -> Cider:
    """Cosine of tf-idf vectors of n-grams (1 to 4), a mean over references and over n.

    Vedantam, Zitnick and Parikh, 2015 (https://arxiv.org/abs/1411.5726), equations 1 to 3, and 4
    for CIDEr-D, the variant of all published tables: counts clipped to the reference's, a Gaussian
    penalty on the difference in length, times 10. Document frequencies come from the given
    references, one "document" per sentence, so a score depends on the whole set, and a single
    sentence scores 0. Words are lower-cased, without punctuation and not stemmed.
    """
    if variant not in VARIANTS:
        raise UsageError(f"no variant {variant!r} of CIDEr", hint=" or ".join(VARIANTS))
    lists = by_sentence(hypotheses, references)
    answers = [_ngrams(each) for each in hypotheses]
    wanted = [[_ngrams(each) for each in held] for held in lists]
    seen = Counter(gram for held in wanted for gram in set().union(*map(_all, held)))
    rarity = _Rarity(seen, math.log(len(lists)))
    compare = _cosine_clipped if variant == "cider-d" else _cosine
    scores = tuple(
        sum(compare(answer, each, rarity) for each in held) / len(held)
        for answer, held in zip(answers, wanted, strict=True)
    )
    return Cider(sum(scores) / len(scores), scores)


class _Rarity(NamedTuple):
    """Inverse document frequency: the logarithm of all documents over those with the n-gram."""

    seen: Counter[tuple[str, ...]]
    log_documents: float

    def weighted(self, counts: _Ngrams) -> dict[tuple[str, ...], float]:
        return {
            gram: n * (self.log_documents - math.log(max(1, self.seen[gram])))
            for gram, n in counts.items()
        }


def _ngrams(text: str) -> list[_Ngrams]:
    words = plain_words(text)
    return [
        Counter(zip(*(words[k:] for k in range(n)), strict=False)) for n in range(1, ORDERS + 1)
    ]


def _all(by_order: list[_Ngrams]) -> Iterator[tuple[str, ...]]:
    return (gram for counts in by_order for gram in counts)


def _cosine(answer: list[_Ngrams], reference: list[_Ngrams], rarity: _Rarity) -> float:
    total = 0.0
    for counts, others in zip(answer, reference, strict=True):
        mine, theirs = rarity.weighted(counts), rarity.weighted(others)
        shared = math.fsum(v * theirs.get(g, 0.0) for g, v in mine.items())
        total += _over(shared, mine, theirs)
    return total / ORDERS


def _cosine_clipped(answer: list[_Ngrams], reference: list[_Ngrams], rarity: _Rarity) -> float:
    total = 0.0
    for counts, others in zip(answer, reference, strict=True):
        mine, theirs = rarity.weighted(counts), rarity.weighted(others)
        shared = math.fsum(min(v, theirs.get(g, 0.0)) * theirs.get(g, 0.0) for g, v in mine.items())
        total += _over(shared, mine, theirs)
    longer = answer[0].total() - reference[0].total()  # in words
    return 10 * math.exp(-(longer**2) / (2 * _SIGMA**2)) * total / ORDERS


def _over(
    dot: float, mine: dict[tuple[str, ...], float], theirs: dict[tuple[str, ...], float]
) -> float:
    norm = math.hypot(*mine.values()) * math.hypot(*theirs.values())
    return dot / norm if norm else 0.0


# Similarity of meaning by word vectors: greedy matching, averages, extrema.


class EmbeddingSimilarity(NamedTuple):
    """Cosines, from -1 to 1."""

    greedy: float
    """Each word with the most similar word of the other sentence, in both directions."""
    average: float
    """The mean vectors of both sentences."""
    extrema: float
    """For each dimension, the most extreme value over all words."""


def embedding_similarity(
    hypothesis: Float[Tensor, "word d_model"], reference: Float[Tensor, "other_word d_model"]
) -> EmbeddingSimilarity:
    """Compare two sentences given as the vectors of their words.

    Liu et al., 2016, "How NOT to evaluate your dialogue system", section 3.2
    (https://arxiv.org/abs/1603.08023). They found hardly any correlation with human judgement:
    check with `correlation` first.
    """
    cosines = normalize(hypothesis, dim=-1) @ normalize(reference, dim=-1).T  # [word, other_word]
    greedy = (cosines.amax(0).mean() + cosines.amax(1).mean()) / 2
    average = cosine_similarity(hypothesis.mean(0), reference.mean(0), dim=0)
    extrema = cosine_similarity(_extrema(hypothesis), _extrema(reference), dim=0)
    return EmbeddingSimilarity(float(greedy), float(average), float(extrema))


def embedding_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    vectors: Mapping[str, Float[Tensor, " d_model"]],
) -> EmbeddingSimilarity:
    """The mean over pairs of sentences. Words without a vector are left out.

    A pair with no known word on either side counts 0, as in the authors' code.
    """
    check_counts(references, hypotheses, "answers", "references")
    if not vectors:
        raise UsageError("there are no word vectors", hint="give a vector for each word")
    scores = []
    for pair in zip(hypotheses, references, strict=True):
        sides = [[vectors[w] for w in plain_words(text) if w in vectors] for text in pair]
        if all(sides):
            scores.append(embedding_similarity(*(torch.stack(side) for side in sides)))
        else:
            scores.append(EmbeddingSimilarity(0.0, 0.0, 0.0))
    return EmbeddingSimilarity(*(sum(each) / len(scores) for each in zip(*scores, strict=True)))


def _extrema(words: Float[Tensor, "word d_model"]) -> Float[Tensor, " d_model"]:
    most, least = words.amax(0), words.amin(0)
    return torch.where(most > least.abs(), most, least)


class Correlation(NamedTuple):
    """From -1 to 1, each with its p-value."""

    spearman: float
    spearman_p: float
    pearson: float
    pearson_p: float


def correlation(metric: Sequence[float], human: Sequence[float]) -> Correlation:
    """Correlation of a metric's scores with human scores of the same answers.

    >>> correlation([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]).spearman
    1.0
    """
    # Takes a second to import.
    from scipy.stats import pearsonr, spearmanr

    check_counts(human, metric, "scores of the metric", "scores of people")
    if len(metric) < 3:
        raise UsageError(
            f"{len(metric)} answers are too few for a correlation", hint="give at least 3"
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
