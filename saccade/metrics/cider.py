"""CIDEr and CIDEr-D: n-grams weighted by how much they tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saccade.errors import UsageError
from saccade.metrics.references import References, by_sentence, plain_words

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
    penalty on the difference in length, times 10. How rare an n-gram is, is learnt from the
    references given, one "document" a sentence, so a score depends on the whole set, and one
    sentence alone scores 0. Words are lower-cased, without punctuation and not stemmed.
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
