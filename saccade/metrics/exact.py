"""Right or wrong: whole answers, their characters, and single predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Bool, Int
from torch import Tensor

from saccade.metrics.references import check_counts


class Accuracy(NamedTuple):
    """From 0 to 1, and what it was made of."""

    rate: float
    n_right: int
    n: int


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Accuracy:
    """Which share of the answers is exactly the reference.

    >>> exact_match(["12184", "25"], ["12184", "25011"]).rate
    0.5
    """
    check_counts(references, hypotheses, "answers", "references")
    pairs = zip(hypotheses, references, strict=True)
    n_right = sum(answer == right for answer, right in pairs)
    return Accuracy(n_right / len(references), n_right, len(references))


def character_accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> Accuracy:
    """Which share of the references' characters stands at the same place of the answer.

    For answers that a model wrote on its own; what goes beyond the reference does not count.

    >>> character_accuracy(["12184", "25"], ["12194", "25011"]).rate
    0.6
    """
    check_counts(references, hypotheses, "answers", "references")
    pairs = list(zip(hypotheses, references, strict=True))
    # An answer may be shorter or longer than its reference.
    n_right = sum(a == b for pair in pairs for a, b in zip(*pair, strict=False))
    n = sum(map(len, references))
    return Accuracy(n_right / n if n else 0.0, n_right, n)


def token_accuracy(
    predicted: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
) -> Accuracy:
    """Which share of predictions is right, each made from the true beginning (teacher forcing).

    What Learning to Execute reports. It says less than it seems to: a model is never led astray by
    its own mistakes. Stand `exact_match` beside it.
    """
    n_right, n = int(((predicted == targets) & mask).sum()), int(mask.sum())
    return Accuracy(n_right / n if n else 0.0, n_right, n)
