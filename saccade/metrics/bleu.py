"""BLEU, by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU

from saccade.metrics.references import References, as_streams, by_sentence


class Bleu(NamedTuple):
    """Of 100; ``signature`` says how it was counted and goes wherever the number goes."""

    score: float
    precisions: tuple[float, ...]
    """Of 1-grams, 2-grams, ..."""
    brevity_penalty: float
    signature: str


def bleu(
    hypotheses: Sequence[str],
    references: References,
    *,
    is_lowercase: bool = False,
    max_order: int = 4,
    tokenize: str = "13a",
) -> Bleu:
    """How many n-grams of the answers are in their references, over the whole corpus.

    Papineni et al., 2002; counted as WMT does (Post, 2018, https://arxiv.org/abs/1804.08771). The
    texts are given as a reader would see them: sacrebleu itself splits them into words.

    Args:
        max_order: 1 to 4 for BLEU-1 to BLEU-4.

    >>> round(bleu(["the cat sat on the mat"], ["the cat sat on a mat"]).score, 2)
    53.73
    """
    streams = as_streams(by_sentence(hypotheses, references))
    metric = BLEU(lowercase=is_lowercase, max_ngram_order=max_order, tokenize=tokenize)
    result = metric.corpus_score(list(hypotheses), streams)
    return Bleu(result.score, tuple(result.precisions), result.bp, str(metric.get_signature()))


def sentence_bleu(hypothesis: str, references: str | Sequence[str], *, max_order: int = 4) -> Bleu:
    """The same for one sentence, where short matches must be smoothed: only what exists is counted.

    As sacrebleu recommends for sentences: exponential smoothing, and no order beyond the sentence's
    length.
    """
    (held,) = by_sentence([hypothesis], [references])
    metric = BLEU(effective_order=True, max_ngram_order=max_order)
    result = metric.sentence_score(hypothesis, held)
    return Bleu(result.score, tuple(result.precisions), result.bp, str(metric.get_signature()))
