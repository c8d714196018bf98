"""A sequence of symbols that a model proposes."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor


class Hypothesis(NamedTuple):
    """One proposed sequence."""

    ids: list[int]
    """Its symbols, without the end symbol."""
    log_prob: float
    """Of all its symbols and of its end, if it has one."""
    score: float
    """What it was ranked by: ``log_prob``, changed for its length if that was asked for."""
    weights: Float[Tensor, "step ..."] | None = None
    """Where attention went at each step, the one that chose the end symbol included."""


class Table(NamedTuple):
    """The hypotheses of many sentences as tensors; what is beyond the last step is unused."""

    ids: Int[Tensor, "sentence n step"]
    length: Int[Tensor, "sentence n"]
    """How many symbols, the end symbol not counted."""
    steps: Int[Tensor, "sentence n"]
    """How many symbols, the end symbol counted."""
    log_prob: Float[Tensor, "sentence n"]
    score: Float[Tensor, "sentence n"]
    """Minus infinity where there is no hypothesis."""
    weights: Float[Tensor, "sentence n step ..."] | None


def to_hypotheses(table: Table) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, in the order of the table."""
    found: list[list[Hypothesis]] = []
    columns = (table.ids, table.length, table.steps, table.log_prob, table.score)
    for s, sentence in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        found.append([])
        for i, (ids, length, steps, log_prob, score) in enumerate(zip(*sentence, strict=True)):
            if score > float("-inf"):
                weights = None if table.weights is None else table.weights[s, i, :steps]
                found[-1].append(Hypothesis(ids[:length], log_prob, score, weights))
    return found
