"""Who acts on one prediction, and where: heads by positions, at first order and exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saccade.errors import UsageError
from saccade.interp.effects.attribution import attribute, with_agreement, with_exact_end
from saccade.interp.effects.positions import HeadAt, position_effects
from saccade.interp.effects.replacement import Ablation, Replacement
from saccade.interp.effects.target import Target
from saccade.interp.lenses.top_tokens import plain

if TYPE_CHECKING:
    from saccade.interp.readings.text_run import TextRun

MOST_TOKENS = 256  # the backward pass keeps every activation, which grows with the text


@dataclass(frozen=True, slots=True)
class AttributionRow:
    """One layer: for each position, the attribution of each head."""

    layer: int
    values: list[list[float]]


@dataclass(frozen=True, slots=True)
class ExactCell:
    """One head at one position: its attribution beside its exact effect."""

    layer: int
    head: int
    position: int
    attribution: float
    exact: float


@dataclass(frozen=True, kw_only=True)
class AttributionMap:
    """What every head at every position gives to the logit of one token, at first order."""

    tokens: list[str]
    position: int
    """Where the prediction is made; at this position the values are exact."""
    token: str
    against: str | None
    replaced_by: Ablation
    score: float
    rows: tuple[AttributionRow, ...]
    checked: tuple[ExactCell, ...]
    """The largest, measured."""
    correlation: float | None
    """Of attribution and exact effect over those."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


def attribution_map(
    run: TextRun, target: Target, *, replacement: Replacement, position: int
) -> AttributionMap:
    """The map of one prediction, for texts of at most `MOST_TOKENS` tokens."""
    at = short_enough(run, position)
    model, ids = run.model, run.ids[:, : at + 1]
    (found,) = attribute(model, ids, target, replacement=replacement)
    found = with_exact_end(model, ids, found, replacement=replacement)
    found = with_agreement(model, ids, found, replacement=replacement)
    agreement = found.agreement
    assert agreement is not None, "it was measured in the line above"
    token, against = named(run, target)
    return AttributionMap(
        tokens=run.tokens[: at + 1],
        position=at,
        token=token,
        against=against,
        replaced_by=replacement.by,
        score=found.score,
        rows=tuple(AttributionRow(layer, v.tolist()) for layer, v in found.by_layer.items()),
        checked=tuple(
            ExactCell(head.layer, head.head, (head.positions or (at,))[0], value, exact.on_token)
            for head, value, exact in zip(
                agreement.heads, agreement.attribution, agreement.exact, strict=True
            )
        ),
        correlation=agreement.correlation,
    )


@dataclass(frozen=True, kw_only=True)
class CellEffect:
    """The exact effect of one head at one position on a later prediction."""

    layer: int
    head: int
    at: int
    position: int
    token: str
    against: str | None
    kl: float
    on_token: float

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


def cell_effect(
    run: TextRun, target: Target, head: HeadAt, *, replacement: Replacement, position: int
) -> CellEffect:
    """Measure one cell of the map."""
    place = run.position(position)
    assert head.positions is not None, "a cell is at one position"
    if head.positions[0] > place:
        raise UsageError(
            f"token {head.positions[0]} comes after the prediction at {place}",
            hint="choose an earlier token, or a later prediction",
        )
    run.model.check_head(head.layer, head.head)
    found = position_effects(
        run.model, run.ids[:, : place + 1], [head], replacement=replacement, target=target
    )[head]
    token, against = named(run, target)
    return CellEffect(
        layer=head.layer,
        head=head.head,
        at=head.positions[0],
        position=place,
        token=token,
        against=against,
        kl=found.kl,
        on_token=found.on_token,
    )


def named(run: TextRun, target: Target) -> tuple[str, str | None]:
    """The tokens of a target."""
    found = [
        run.model.tokens([each])[0] for each in (target.token, target.against) if each is not None
    ]
    return found[0], found[1] if len(found) > 1 else None


def short_enough(run: TextRun, position: int) -> int:
    """The position, if a backward pass up to it is affordable."""
    at = run.position(position)
    if at >= MOST_TOKENS:
        raise UsageError(
            f"attribution takes at most {MOST_TOKENS} tokens, and the prediction is after {at + 1}",
            hint="choose an earlier token, or shorten the text",
        )
    return at
