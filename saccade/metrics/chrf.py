"""Character n-gram F-score, by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.chrf import CHRF

from saccade.metrics.references import References, as_streams, by_sentence


class Chrf(NamedTuple):
    """Of 100; ``signature`` says how it was counted."""

    score: float
    signature: str


def chrf(hypotheses: Sequence[str], references: References, *, word_order: int = 0) -> Chrf:
    """How many character n-grams (1 to 6) the answers share with their references, by F2.

    Popović, 2015; with ``word_order=2`` it is chrF++ (Popović, 2017).

    >>> chrf(["a cat"], ["a cat"]).score
    100.0
    """
    streams = as_streams(by_sentence(hypotheses, references))
    metric = CHRF(word_order=word_order)
    result = metric.corpus_score(list(hypotheses), streams)
    return Chrf(result.score, str(metric.get_signature()))
