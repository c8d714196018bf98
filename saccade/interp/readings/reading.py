"""A reading: what every head does at one position of a text, what it knows, and where it looks.

The two are never confused. What a head *does* is its effect: how the model's prediction changes
when the head's activation is replaced, measured (`saccade.interp.effects`). What its activation
*knows* is the prediction of a lens, a fitted map from the activation to tokens
(`saccade.interp.lenses`). A reading works without lenses; where there are some, it tells how far
each agrees with the effect here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from saccade.errors import LensError, UsageError
from saccade.interp.effects.effects import Effect, Kind
from saccade.interp.effects.replacement import Ablation
from saccade.interp.lenses.lens_set import share_explained
from saccade.interp.lenses.top_tokens import TokenValue, plain
from saccade.viewer.export import Shown, reading_page


@dataclass(frozen=True, slots=True)
class Source:
    """A position that a head attends to, or a run of tokens of a chat template."""

    position: int
    text: str
    weight: float
    length: int = 1
    """How many tokens it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LensReading:
    """What the activation of a head knows: the prediction of one lens."""

    kl_from_baseline: float
    """KL of the lens's prediction here from that of the baseline lens, in nats."""
    quality: dict[str, float]
    """The metrics of the lens on held-out text; empty if it was never scored."""
    predicts: Sequence[TokenValue]
    """The likeliest tokens, with their probabilities."""
    adds: Sequence[TokenValue]
    """The tokens it predicts more than the baseline, each with its share of the KL."""
    suppresses: Sequence[TokenValue]
    """The tokens it predicts less than the baseline, with ``baseline log(lens / baseline)`` < 0."""

    @property
    def explained(self) -> float | None:
        """The share of the baseline lens's KL that this lens removes, on held-out text.

        0 is a lens no better than the baseline, 1 would be the model itself; None if the lens was
        never scored.
        """
        return share_explained(self.quality)

    @property
    def fidelity(self) -> float | None:
        """The correlation of the lens with the effect of ablating the head, over a text.

        Measured by `saccade lens fidelity`; None if not measured.
        """
        return self.quality.get("ablation")


ReadKind: TypeAlias = Kind | Literal["residual"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadReading:
    """One head, or another part of the model, at one position."""

    layer: int
    head: int | None
    """None for a part that is not a head."""
    kind: ReadKind = "head"
    """"residual" is the stream after a layer, read with a lens of the stream."""
    effect: Effect | None
    """What it does; None if effects were not measured."""
    lens: LensReading | None
    """What its activation knows; None without a lens for it."""
    unembedded: Sequence[TokenValue] = ()
    """The tokens of the raw unembedding, with logits; empty unless requested."""
    attends: Sequence[Source] = ()
    """The positions it attends to most."""

    @property
    def name(self) -> str:
        """``29.0`` is head 0 of layer 29; ``29.feed-forward`` and ``29.attention`` are whole."""
        return f"{self.layer}.{self.kind if self.head is None else self.head}"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; numbers to six digits."""
        return plain(self)


# The ranking of the heads of a reading.

Order = Literal["effect", "token", "direct", "lens", "quality"]
"""By the KL of its effect, its effect on the target token, the direct part of that, the KL of its
lens from the baseline, or the quality of its lens."""


def in_order(heads: Sequence[HeadReading], by: Order) -> tuple[HeadReading, ...]:
    """The heads, largest value first; ties by depth, heads without the metric last.

    Raises:
        LensError: no head has the metric.
    """
    if by not in get_args(Order):
        raise UsageError(
            f"unknown order {by!r}: expected one of {', '.join(get_args(Order))}",
            hint="the default order is effect",
        )
    values = [_value(head, by) for head in heads]
    if all(value is None for value in values):
        raise _no_values(by)
    ranks = [float("-inf") if value is None else value for value in values]
    return tuple(heads[at] for at in sorted(range(len(ranks)), key=lambda at: -ranks[at]))


def _value(head: HeadReading, by: Order) -> float | None:
    effect, lens = head.effect, head.lens
    if by == "effect":
        return None if effect is None else effect.kl
    if by == "token":
        return None if effect is None else abs(effect.on_token)
    if by == "direct":
        return None if effect is None else effect.direct
    if by == "lens":
        return None if lens is None else lens.kl_from_baseline
    return None if lens is None else lens.quality.get("gain")


def _no_values(by: Order) -> LensError:
    if by in ("effect", "token"):
        return LensError(
            "the effects of the heads were not measured in this reading",
            hint="read with `effects=True`, the default",
        )
    if by == "direct":
        return LensError(
            "no head has a direct effect on a token: the model has no direct path from a head to "
            "the tokens",
            hint="rank by effect instead",
        )
    if by == "lens":
        return LensError(
            "no lens has been fitted for these heads",
            hint="fit lenses with `saccade lens fit`, or rank by effect",
        )
    return LensError(
        "these lenses were never scored, so they cannot be ranked by quality",
        hint="score them with `saccade lens eval`",
    )


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the heads of a model do, know and attend to at one position of a text."""

    model: str
    text: str
    tokens: list[str]
    position: int
    """The token after which the heads are read, counted from the start."""
    prediction: tuple[TokenValue, ...]
    """The model's own likeliest next tokens, with their probabilities."""
    target: TokenValue | None
    """The token that ``on_token`` and ``direct`` are about, with its probability; None without
    effects."""
    against: TokenValue | None
    """The token whose logit is subtracted; None for the mean of all tokens."""
    replaced_by: Ablation | None
    """What replaced a head to measure its effect."""
    heads: tuple[HeadReading, ...]
    """All heads, in order of depth."""
    others: tuple[HeadReading, ...] = ()
    """Feed-forward parts, whole attention layers and residual streams, if they were asked for."""
    template: list[int] = field(default_factory=list)
    """The positions of the tokens that a chat template adds to messages."""

    def ranked(self, by: Order = "effect") -> tuple[HeadReading, ...]:
        """The heads and other parts, largest first.

        Args:
            by: "effect", the KL of the model's prediction with the head from that without it;
                "token", the size of its effect on the target token's logit; "direct", the direct
                part of that; "lens", the KL of its lens from the baseline here; "quality", the
                gain of its lens on held-out text. Heads without the metric come last.
        """
        return in_order((*self.heads, *self.others), by)

    def at(self, layer: int, head: int | None = None) -> HeadReading:
        """The reading of one head; without a head, of the residual stream after the layer."""
        for each in (*self.heads, *self.others):
            if (each.layer, each.head) == (layer, head) and each.kind in ("head", "residual"):
                return each
        wanted = f"layer {layer}" if head is None else f"layer {layer} head {head}"
        every = self.heads or self.others
        raise UsageError(
            f"this reading has no {wanted}: it has {every[0].name} to {every[-1].name}",
            hint="layers and heads are counted from 0",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, as `to_json` writes them."""
        return plain(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def to_table(self, *, by: Order = "effect", heads: int = 8, width: int = 80) -> str:
        """The prediction and the first heads of a ranking, as plain text."""
        from saccade.interp.readings.reading_table import table_text

        return table_text(self, self.ranked(by)[:heads], width=width)

    def to_html(self) -> str:
        """One page that works offline: a map of all heads, and a card for each."""
        return reading_page(self.to_dict())

    def _repr_html_(self) -> str:
        return Shown(self.to_html())._repr_html_()
