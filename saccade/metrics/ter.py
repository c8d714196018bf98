"""Translation edit rate, by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.ter import TER

from saccade.metrics.references import References, as_streams, by_sentence


class Ter(NamedTuple):
    """Edits for each hundred words of the reference: less is better, and it may exceed 100."""

    score: float
    n_edits: float
    """Words inserted, deleted or replaced, and blocks of words moved."""
    n_words: float
    """Of the references; their mean where there are several."""
    signature: str


def ter(hypotheses: Sequence[str], references: References) -> Ter:
    """How much of the answers must be edited to get their references.

    Snover et al., 2006. Lower-cased words, as Tercom has them by default.

    >>> ter(["the cat sat"], ["the cat sat down"]).score
    25.0
    """
    streams = as_streams(by_sentence(hypotheses, references))
    metric = TER()
    result = metric.corpus_score(list(hypotheses), streams)
    return Ter(
        result.score, float(result.num_edits), result.ref_length, str(metric.get_signature())
    )
