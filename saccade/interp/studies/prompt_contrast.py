"""Two prompts compared: the prediction of each, and the heads that cause the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saccade.interp.effects.target import Target
from saccade.interp.lenses.top_tokens import TokenValue, plain
from saccade.interp.readings.reading import HeadReading, Reading
from saccade.interp.studies.head_measures import token_asked

if TYPE_CHECKING:
    from saccade.interp.readings.text_run import TextRun


@dataclass(frozen=True, kw_only=True)
class Side:
    """The prediction at the end of one of the prompts."""

    text: str
    tokens: list[str]
    position: int
    prediction: tuple[TokenValue, ...]
    score: float
    """The logit of the token minus that of the other token, or minus the mean logit."""
    probability: float
    against_probability: float | None


@dataclass(frozen=True)
class NamedToken:
    """A token of the vocabulary."""

    id: int
    text: str


@dataclass(frozen=True, kw_only=True)
class ComparedHead:
    """A head in both prompts, left and right."""

    layer: int
    head: int | None
    effect: tuple[float, float] | None
    """`Effect.on_token`: how far the score falls without the head; None for a residual stream."""
    direct: tuple[float, float] | None
    """`Effect.direct`: the direct part of it; None without a direct path."""
    difference: float | None
    """Of the effects, right minus left."""
    kl_from_baseline: tuple[float, float] | None
    """Of the predictions of its lens; None without a lens."""
    adds: tuple[Sequence[TokenValue], Sequence[TokenValue]]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Both prompts, and every head on both sides."""

    token: NamedToken
    against: NamedToken | None
    left: Side
    right: Side
    heads: tuple[ComparedHead, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


def compare_prompts(
    runs: tuple[TextRun, TextRun],
    read: Callable[[str, Target], Reading],
    *,
    token: str | None = None,
    against: str | None = None,
) -> Compared:
    """Both prompts, and every head on both sides.

    Default tokens: the prediction of the left prompt, against that of the right one if it differs.

    Args:
        read: reads all heads at the last token of a text, with their effects on a target.
    """
    target = _target(runs, token, against)
    left, right = (read(run.text, target) for run in runs)
    ids = [each for each in (target.token, target.against) if each is not None]
    tokens = list(map(NamedToken, ids, runs[0].model.tokens(ids)))
    sides = zip((*left.heads, *left.others), (*right.heads, *right.others), strict=True)
    return Compared(
        token=tokens[0],
        against=tokens[1] if len(tokens) > 1 else None,
        left=_side(runs[0], left, target),
        right=_side(runs[1], right, target),
        heads=tuple(_head(a, b) for a, b in sides if a.kind == "head" or a.lens is not None),
    )


def _head(left: HeadReading, right: HeadReading) -> ComparedHead:
    effect = direct = None
    if left.effect is not None and right.effect is not None:
        effect = (left.effect.on_token, right.effect.on_token)
        if left.effect.direct is not None and right.effect.direct is not None:
            direct = (left.effect.direct, right.effect.direct)
    lenses = None if left.lens is None or right.lens is None else (left.lens, right.lens)
    return ComparedHead(
        layer=left.layer,
        head=left.head,
        effect=effect,
        direct=direct,
        difference=None if effect is None else effect[1] - effect[0],
        kl_from_baseline=None
        if lenses is None
        else (lenses[0].kl_from_baseline, lenses[1].kl_from_baseline),
        adds=((), ()) if lenses is None else (lenses[0].adds, lenses[1].adds),
    )


def _target(runs: tuple[TextRun, TextRun], token: str | None, against: str | None) -> Target:
    first, other = (
        int(run.model.unembedding.logits(run.captured.final[0, -1]).argmax()) for run in runs
    )
    if token is not None:
        first = token_asked(runs[0], token)
    if against is not None:
        second: int | None = token_asked(runs[0], against)
    else:
        second = other if token is None else None
    return Target(first, None if second == first else second)


def _side(run: TextRun, reading: Reading, target: Target) -> Side:
    logits = run.model.unembedding.logits(run.captured.final[0, -1]).float()
    chances = logits.softmax(-1)
    return Side(
        text=run.text,
        tokens=run.tokens,
        position=reading.position,
        prediction=tuple(reading.prediction),
        score=float(target.score(logits)),
        probability=float(chances[target.token]),
        against_probability=None if target.against is None else float(chances[target.against]),
    )
