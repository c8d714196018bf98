"""Two prompts compared: the prediction of each, and the heads that cause the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from saccade.interp.effects.target import Target
from saccade.interp.lenses.top_tokens import TokenValue, plain
from saccade.interp.readings.reader import read_run
from saccade.interp.readings.reading import Reading
from saccade.interp.studies.head_measures import token_asked
from saccade.interp.studies.head_rank import direct_scores

if TYPE_CHECKING:
    from saccade.interp.lenses.lens_set import Lenses
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
    kl_from_baseline: tuple[float, float]
    direct: tuple[float, float] | None
    """What the head adds directly to the score; None without a direct path."""
    difference: float | None
    """Right minus left."""
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


@torch.inference_mode()
def compare_prompts(
    lenses: Lenses,
    runs: tuple[TextRun, TextRun],
    *,
    token: str | None = None,
    against: str | None = None,
    top: int = 5,
) -> Compared:
    """Both prompts, and every head on both sides.

    Default tokens: the prediction of the left prompt, against that of the right one if it differs.
    """
    readings = [read_run(lenses, run, top=top) for run in runs]
    target = _target(runs, readings, token, against)
    sides = [_side(run, reading, target) for run, reading in zip(runs, readings, strict=True)]
    direct = [direct_scores(run.model, run.captured, target) for run in runs]
    heads = []
    for left, right in zip(*((*each.heads, *each.others) for each in readings), strict=True):
        added = None
        assert left.lens is not None and right.lens is not None, "read with lenses"
        if left.head is not None and left.layer in direct[0]:
            first, second = (float(each[left.layer][0, left.head]) for each in direct)
            added = (first, second)
        heads.append(
            ComparedHead(
                layer=left.layer,
                head=left.head,
                kl_from_baseline=(left.lens.kl_from_baseline, right.lens.kl_from_baseline),
                direct=added,
                difference=None if added is None else added[1] - added[0],
                adds=(left.lens.adds, right.lens.adds),
            )
        )
    ids = [each for each in (target.token, target.against) if each is not None]
    tokens = list(map(NamedToken, ids, runs[0].model.tokens(ids)))
    return Compared(
        token=tokens[0],
        against=tokens[1] if len(tokens) > 1 else None,
        left=sides[0],
        right=sides[1],
        heads=tuple(heads),
    )


def _target(
    runs: tuple[TextRun, TextRun],
    readings: Sequence[Reading],
    token: str | None,
    against: str | None,
) -> Target:
    predicted = [reading.prediction[0].id for reading in readings]
    first = predicted[0] if token is None else token_asked(runs[0], token)
    if against is not None:
        second: int | None = token_asked(runs[0], against)
    else:
        second = predicted[1] if token is None else None
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
