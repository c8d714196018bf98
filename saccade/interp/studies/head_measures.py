"""One metric for every head of a model at a position of a text: the colours of a head map."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from saccade.errors import LensError, UsageError
from saccade.interp.effects.target import Target, first_token
from saccade.interp.heads.intervene import intervene
from saccade.interp.lenses.lens import activation_at
from saccade.interp.lenses.lens_set import share_explained
from saccade.interp.lenses.top_tokens import TokenValue, plain
from saccade.interp.readings.reader import read_run
from saccade.interp.readings.views import entropy_of
from saccade.interp.studies.bias.bias_words import tokens_of
from saccade.interp.studies.bias.measure import ask, baseline_mass

if TYPE_CHECKING:
    from saccade.interp.effects.effects import Effect
    from saccade.interp.lenses.lens_set import Lenses
    from saccade.interp.readings.reading import Reading
    from saccade.interp.readings.text_run import TextRun

OfEffects: TypeAlias = Literal["effect", "token", "direct"]
Measure: TypeAlias = OfEffects | Literal["lens", "gain", "fidelity", "mass", "entropy"]
Values: TypeAlias = Mapping[int, Sequence[float | None]]
"""Layer -> one value per head; None where a head has no value."""


@dataclass(frozen=True)
class Row:
    """One metric for every head of a layer."""

    layer: int
    values: list[float | None]
    """None where a head has no value."""


@dataclass(frozen=True, kw_only=True)
class HeadMap:
    """One metric for every head."""

    measure: Measure
    label: str
    """A description of the metric, for the legend."""
    unit: str
    is_two_way: bool
    """Whether values lie on both sides of zero, so that the colours should diverge there."""
    token: TokenValue | None
    """The token that the metric is about, if any."""
    against: TokenValue | None
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


def is_two_way(values: Sequence[float]) -> bool:
    """Whether values lie on both sides of zero; values just below it do not count.

    >>> is_two_way([-1.0, 2.0]), is_two_way([-0.01, 2.0])
    (True, False)
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    return -low > high / 20 if high > 0 else low < 0


def rows_of(values: Values) -> tuple[Row, ...]:
    """A map for JSON: a row for each layer, numbers to six digits.

    >>> rows_of({0: [0.5, None]})
    (Row(layer=0, values=[0.5, None]),)
    """
    return tuple(Row(layer, [_known(each) for each in row]) for layer, row in values.items())


def _map(
    measure: Measure,
    values: Values,
    *,
    label: str,
    unit: str,
    tokens: tuple[TokenValue | None, TokenValue | None] = (None, None),
) -> HeadMap:
    known = [value for row in values.values() for value in row if value is not None]
    return HeadMap(
        measure=measure,
        label=label,
        unit=unit,
        is_two_way=is_two_way(known),
        token=tokens[0],
        against=tokens[1],
        rows=rows_of(values),
    )


def lens_gain(lenses: Lenses) -> HeadMap:
    """The share of the baseline lens's KL that each lens removes."""
    values = {site: share_explained(lenses.quality_of(*site)) for site in lenses.sites}
    return _map(
        "gain",
        _by_layer(_scored(values, "saccade lens eval")),
        label="share of the baseline lens's KL that the lens removes on held-out text",
        unit="share",
    )


def lens_fidelity(lenses: Lenses) -> HeadMap:
    """How far each lens predicts the effect of ablating its head."""
    values = {site: lenses.quality_of(*site).get("ablation") for site in lenses.sites}
    return _map(
        "fidelity",
        _by_layer(_scored(values, "saccade lens fidelity")),
        label="correlation of the lens with the effect of ablating the head",
        unit="correlation",
    )


def lens_kl(lenses: Lenses, run: TextRun, *, position: int) -> HeadMap:
    """KL of each lens from the baseline lens."""
    reading = read_run(lenses, run, position=position, top=1)
    return _map(
        "lens",
        _by_layer(
            {
                (each.layer, each.head or 0): each.lens.kl_from_baseline
                for each in (*reading.heads, *reading.others)
                if each.lens is not None
            }
        ),
        label="KL from the baseline lens, in nats",
        unit="nats",
    )


def attention_entropy(run: TextRun, *, position: int) -> HeadMap:
    """The entropy of the attention of each head."""
    found = run.attention_at(run.position(position))
    return _map(
        "entropy",
        {layer: entropy_of(each.float()).tolist() for layer, each in found.items()},
        label="entropy of the attention of the head",
        unit="nats",
    )


def effect_map(reading: Reading, measure: OfEffects) -> HeadMap:
    """The exact effects of all heads, as `saccade read` shows them.

    Args:
        measure: "effect", the KL of the prediction with the head from that without it; "token",
            the effect on the logit of the reading's target token; "direct", the direct part of it.
    """
    values = {
        (each.layer, each.head or 0): _of_effect(each.effect, measure)
        for each in reading.heads
        if each.effect is not None
    }
    if not values:
        raise LensError("the effects of this reading were not measured", hint="measure them first")
    if all(value is None for value in values.values()):
        raise LensError(
            f"the heads of {reading.model} have no direct path to the tokens",
            hint="colour the map by effect, or by the effect on the token",
        )
    if measure == "effect":
        label = f"KL of the prediction with the head from that with its {reading.replaced_by}"
        return _map(measure, _by_layer(values), label=label, unit="nats")
    assert reading.target is not None, "a reading with effects has a target"
    other = "the mean logit" if reading.against is None else f"that of {reading.against.text!r}"
    what = "effect" if measure == "token" else "direct effect"
    return _map(
        measure,
        _by_layer(values),
        label=f"{what} on the logit of {reading.target.text!r}, against {other}",
        unit="logits",
        tokens=(reading.target, reading.against),
    )


def _of_effect(effect: Effect, measure: OfEffects) -> float | None:
    if measure == "effect":
        return effect.kl
    return effect.on_token if measure == "token" else effect.direct


@torch.inference_mode()
def mass_on_words(lenses: Lenses, run: TextRun, words: Sequence[str], *, position: int) -> HeadMap:
    """The probability of some words under each lens, minus that under the baseline lens."""
    model, at = run.model, run.position(position)
    with changed(run):
        asked = ask(model, [run.ids[0, : at + 1]], tokens_of(model, words))
    always = float(baseline_mass(lenses, asked).sum())
    rows: dict[int, list[float]] = {}
    for layer, lens in lenses.by_layer.items():
        activation = activation_at(model, run.captured, layer, lens.site, positions=[at])
        log_p = lens(activation)[0].log_softmax(-1)[
            :, asked.first.to(activation.device)
        ]  # [head, token]
        mass = (log_p.cpu().double() + asked.log_rest).exp().sum(-1)
        rows[layer] = (mass - always).tolist()
    return _map(
        "mass",
        rows,
        label=f"probability of {', '.join(words[:4])}{' ...' if len(words) > 4 else ''} under the "
        "lens, minus that under the baseline lens",
        unit="probability",
    )


@torch.inference_mode()
def target_at(
    run: TextRun, *, position: int, token: str | None = None, against: str | None = None
) -> Target:
    """The tokens a metric is about: those requested, or the prediction of the model there."""
    at = run.position(position)
    if token is None:
        first = int(run.model.unembedding.logits(run.captured.final[0, at]).argmax())
    else:
        first = token_asked(run, token)
    if against is None:
        return Target(first)
    second = token_asked(run, against)
    if first == second:
        raise UsageError(
            f"both targets begin with the same token, {run.model.tokens([first])[0]!r}",
            hint="give tokens whose first tokens differ",
        )
    return Target(first, second)


def token_asked(run: TextRun, token: str) -> int:
    """A token as a user writes it, or its id after a #: ``#7042``."""
    if token[:1] == "#" and token[1:].isdecimal():
        number = int(token[1:])
        if number >= run.model.d_vocab:
            raise UsageError(
                f"no token {number}: the model has tokens 0-{run.model.d_vocab - 1}",
                hint="give a token as text",
            )
        return number
    return first_token(run.model, token, run.text)


def changed(run: TextRun) -> AbstractContextManager[object]:
    """The model with the changes of the run."""
    if not run.changes:
        return nullcontext()
    return intervene(run.model, run.changes, may_do_nothing=True)


def _by_layer(
    values: Mapping[tuple[int, int], float | None],
) -> dict[int, list[float | None]]:
    rows: dict[int, list[float | None]] = {}
    for (layer, _), value in values.items():
        rows.setdefault(layer, []).append(value)
    return rows


def _scored(
    values: dict[tuple[int, int], float | None], command: str
) -> dict[tuple[int, int], float | None]:
    if all(value is None for value in values.values()):
        raise LensError(
            "these lenses have no such metric yet", hint=f"measure them with `{command}`"
        )
    return values


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else plain(value)
