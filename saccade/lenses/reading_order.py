"""Which heads of a reading come first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from saccade.errors import LensError, UsageError
from saccade.lenses.head_reading import HeadReading

Order = Literal["says", "contributes", "quality"]
"""By what a head says here, by what it adds to the predicted word, by how good its lens is."""


def in_order(heads: Sequence[HeadReading], by: Order) -> tuple[HeadReading, ...]:
    """The heads, largest figure first; equal ones by depth, those without the figure last.

    Raises:
        LensError: no head has the figure.
    """
    if by not in get_args(Order):
        raise UsageError(
            f"unknown order {by!r}: expected one of {', '.join(get_args(Order))}",
            hint="heads are ranked by what they say here unless told otherwise",
        )
    figures = [_figure(head, by) for head in heads]
    if all(figure is None for figure in figures):
        raise _no_figures(by)
    ranks = [float("-inf") if figure is None else figure for figure in figures]
    return tuple(heads[at] for at in sorted(range(len(ranks)), key=lambda at: -ranks[at]))


def _figure(head: HeadReading, by: Order) -> float | None:
    if by == "says":
        return head.says
    return head.contributes if by == "contributes" else head.quality.get("gain")


def _no_figures(by: Order) -> LensError:
    if by == "contributes":
        return LensError(
            "nothing here contributes directly to a word: these lenses read the residual stream, "
            "or the model has no direct path from a head to the words",
            hint="rank by what the heads say",
        )
    return LensError(
        "these lenses were never scored, so they cannot be ranked by quality",
        hint="score them with `saccade lens eval`",
    )
