"""BLEU by the length of sentences: the picture that made attention famous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from saccade.errors import MissingPackageError, UsageError
from saccade.metrics.bleu import bleu
from saccade.metrics.references import References, by_sentence, check_counts
from saccade.store import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Multi30k's German test sentences have 11 words on average. This makes four buckets of about 200
# and two smaller ones of long sentences (109 and 40), where systems differ most.
EDGES = (7, 9, 11, 14, 18)


class LengthBucket(NamedTuple):
    """Sentences of ``shortest`` to ``longest`` words."""

    shortest: int
    longest: int
    mean_length: float
    n_sentences: int
    bleu: float


def bleu_by_length(
    hypotheses: Sequence[str],
    references: References,
    lengths: Sequence[int],
    *,
    edges: Sequence[int] = EDGES,
) -> list[LengthBucket]:
    """BLEU of the sentences of each range of lengths, shortest first.

    Bahdanau et al., 2015, figure 2 (https://arxiv.org/abs/1409.0473). There a curve over all
    sentences up to a length is drawn; here each bucket has its own sentences only.

    Args:
        lengths: how long each source sentence is.
        edges: the longest length of each bucket; one more bucket takes all that is longer.
    """
    lists = by_sentence(hypotheses, references)
    check_counts(lists, lengths, "lengths", "references")
    if list(edges) != sorted(set(edges)):
        raise UsageError(f"the edges {list(edges)} do not grow", hint="give them in rising order")
    buckets = []
    for low, high in zip((0, *edges), (*edges, max(lengths)), strict=True):
        rows = [row for row, length in enumerate(lengths) if low < length <= high]
        if rows:
            held = [lengths[row] for row in rows]
            score = bleu([hypotheses[row] for row in rows], [lists[row] for row in rows]).score
            mean = sum(held) / len(held)
            buckets.append(LengthBucket(min(held), max(held), mean, len(held), score))
    return buckets


def save_bleu_by_length(path: str | Path, curves: Mapping[str, Sequence[LengthBucket]]) -> None:
    """Write a PNG with a curve for each system."""
    figure = draw_bleu_by_length(curves)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)


def draw_bleu_by_length(curves: Mapping[str, Sequence[LengthBucket]]) -> Figure:
    """The same as a matplotlib figure, for notebooks."""
    if not any(curves.values()):
        raise UsageError("there is no curve to draw", hint="give the buckets of a system")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a curve needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)  # no window is opened and nothing stays behind
    axes = figure.add_subplot()
    # Told apart by shape as well, for any colour vision and for print.
    for (name, buckets), marker in zip(curves.items(), "os^Dv*xP" * len(curves), strict=False):
        x, y = [each.mean_length for each in buckets], [each.bleu for each in buckets]
        axes.plot(x, y, marker=marker, label=name)
    axes.set_xlabel("words in the source sentence")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure
