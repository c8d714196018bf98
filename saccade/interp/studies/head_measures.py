"""One figure for every head of a model at a position of a text: what a head map is coloured by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch

from saccade.errors import LensError, UsageError
from saccade.interp.heads.intervene import intervene
from saccade.interp.lenses.lens import activation_at
from saccade.interp.lenses.reading import TokenValue, plain, read_run, share_explained
from saccade.interp.lenses.views import entropy_of
from saccade.interp.studies.bias.bias_mass import ask, baseline_mass
from saccade.interp.studies.bias.bias_words import tokens_of
from saccade.interp.studies.head_rank import (
    Replacement,
    Target,
    ablated_copies,
    direct_scores,
    first_token,
)

if TYPE_CHECKING:
    from saccade.interp.lenses.lens_set import Lenses
    from saccade.interp.lenses.text_run import TextRun

Measure: TypeAlias = Literal["lens", "gain", "fidelity", "direct", "effect", "mass", "entropy"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Figures: TypeAlias = Mapping[int, Sequence[float | None]]
"""Layer -> one figure a head; None where a head has no such figure."""
MOST_ABLATED = 128  # tokens of a text whose heads are all ablated in turn: a minute or two


@dataclass(frozen=True)
class Row:
    """A figure for every head of a layer."""

    layer: int
    values: list[float | None]
    """None where a head has no such figure."""


@dataclass(frozen=True, kw_only=True)
class HeadMap:
    """A figure for every head."""

    measure: Measure
    label: str
    """What the figure is, for the legend."""
    unit: str
    is_two_way: bool
    """Whether figures lie well on both sides of zero, where colours should meet."""
    token: TokenValue | None
    """What the figure is about, if it is about a token."""
    against: TokenValue | None
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


def is_two_way(figures: Sequence[float]) -> bool:
    """Whether figures lie on both sides of zero; some hardly below it do not count.

    >>> is_two_way([-1.0, 2.0]), is_two_way([-0.01, 2.0])
    (True, False)
    """
    low, high = min(figures, default=0.0), max(figures, default=0.0)
    return -low > high / 20 if high > 0 else low < 0


def rows_of(figures: Figures) -> tuple[Row, ...]:
    """A map as JSON has it: a row for each layer, numbers to six digits.

    >>> rows_of({0: [0.5, None]})
    (Row(layer=0, values=[0.5, None]),)
    """
    return tuple(Row(layer, [_known(each) for each in row]) for layer, row in figures.items())


def _map(
    measure: Measure,
    figures: Figures,
    *,
    label: str,
    unit: str,
    tokens: tuple[TokenValue | None, TokenValue | None] = (None, None),
) -> HeadMap:
    known = [figure for row in figures.values() for figure in row if figure is not None]
    return HeadMap(
        measure=measure,
        label=label,
        unit=unit,
        is_two_way=is_two_way(known),
        token=tokens[0],
        against=tokens[1],
        rows=rows_of(figures),
    )


def lens_gain(lenses: Lenses) -> HeadMap:
    """The share of the baseline lens's KL that each lens removes."""
    figures = {site: share_explained(lenses.quality_of(*site)) for site in lenses.sites}
    return _map(
        "gain",
        _by_layer(_scored(figures, "saccade lens eval")),
        label="share of the baseline lens's KL that the lens removes on held-out text",
        unit="share",
    )


def lens_fidelity(lenses: Lenses) -> HeadMap:
    """How far each lens tells what removing its head does."""
    figures = {site: lenses.quality_of(*site).get("ablation") for site in lenses.sites}
    return _map(
        "fidelity",
        _by_layer(_scored(figures, "saccade lens fidelity")),
        label="correlation of what the lens says with what removing the head does",
        unit="correlation",
    )


def lens_kl(lenses: Lenses, run: TextRun, *, position: int) -> HeadMap:
    """How far each lens is from saying nothing."""
    reading = read_run(lenses, run, position=position, top=1)
    return _map(
        "lens",
        _by_layer({(each.layer, each.head or 0): each.kl_from_baseline for each in reading.heads}),
        label="KL from the baseline lens, in nats",
        unit="nats",
    )


def attention_entropy(run: TextRun, *, position: int) -> HeadMap:
    """How widely each head looks."""
    found = run.attention_at(run.position(position))
    return _map(
        "entropy",
        {layer: entropy_of(each.float()).tolist() for layer, each in found.items()},
        label="entropy of what the head attends to",
        unit="nats",
    )


@torch.inference_mode()
def direct_effects(run: TextRun, target: Target, *, position: int) -> HeadMap:
    """What each head adds directly to a token's logit, above another token's or the mean one's."""
    found = direct_scores(run.model, run.captured, target, position=run.position(position))
    if not found:
        raise LensError(
            f"the heads of {run.model.name} have no direct path to the tokens",
            hint="colour the map by what its heads say, or by the effect of ablation",
        )
    tokens = _tokens(run, target, position)
    return _map(
        "direct",
        {layer: each[0].tolist() for layer, each in found.items()},
        label=f"what the head adds directly to the logit of {tokens[0].text!r}",
        unit="logits",
        tokens=tokens,
    )


@torch.no_grad()
def ablation_effects(
    run: TextRun,
    target: Target,
    *,
    position: int,
    replacement: Replacement,
    progress: Callable[[str, int, int], None] | None = None,
) -> HeadMap:
    """By how much a token's logit falls without each head; as `rank_heads`, at any position."""
    model, at = run.model, run.position(position)
    if len(run.tokens) > MOST_ABLATED:
        raise UsageError(
            f"the text has {len(run.tokens)} tokens: ablating every head is for at most "
            f"{MOST_ABLATED}",
            hint="shorten the text, or colour the map by what heads add directly",
        )
    score = float(target.score(model.unembedding.logits(run.captured.final[0, at]).float()))
    effects: dict[tuple[int, int], float | None] = {}
    with changed(run):
        for rows in ablated_copies(model, run.ids, replacement):
            without = model.unembedding.logits(rows.captured.final[:, at]).float()
            lost = score - target.score(without)
            effects.update(zip(rows.sites, lost.tolist(), strict=True))
            if progress is not None:
                progress("ablate heads", len(effects), model.n_heads)
    tokens = _tokens(run, target, position)
    return _map(
        "effect",
        _by_layer(effects),
        label=f"fall of the logit of {tokens[0].text!r} without the head",
        unit="logits",
        tokens=tokens,
    )


@torch.inference_mode()
def mass_on_words(lenses: Lenses, run: TextRun, words: Sequence[str], *, position: int) -> HeadMap:
    """The probability that each lens gives to some words, less what the baseline lens gives."""
    model, at = run.model, run.position(position)
    with changed(run):
        asked = ask(model, [run.ids[0, : at + 1]], tokens_of(model, words))
    always = float(baseline_mass(lenses, asked).sum())
    rows: dict[int, list[float]] = {}
    for layer, lens in lenses.by_layer.items():
        activation = activation_at(model, run.captured, layer, lens.site, positions=[at])
        said = lens(activation)[0].log_softmax(-1)[
            :, asked.first.to(activation.device)
        ]  # [head, token]
        mass = (said.cpu().double() + asked.log_rest).exp().sum(-1)
        rows[layer] = (mass - always).tolist()
    return _map(
        "mass",
        rows,
        label=f"probability of {', '.join(words[:4])}{' ...' if len(words) > 4 else ''} by the "
        "lens, less that of the baseline lens",
        unit="probability",
    )


@torch.inference_mode()
def target_at(
    run: TextRun, *, position: int, token: str | None = None, against: str | None = None
) -> Target:
    """The tokens a figure is about: those asked for, or what the model predicts there."""
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
    """A token as a user writes it, or its number in the vocabulary behind a #: ``#7042``."""
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
    """The model as it was while the run was made."""
    if not run.changes:
        return nullcontext()
    return intervene(run.model, run.changes, may_do_nothing=True)


def _tokens(run: TextRun, target: Target, position: int) -> tuple[TokenValue, TokenValue | None]:
    at = run.position(position)
    chances = run.model.unembedding.logits(run.captured.final[0, at]).float().softmax(-1)
    ids = [each for each in (target.token, target.against) if each is not None]
    found = [
        TokenValue(id_, text, float(chances[id_]))
        for id_, text in zip(ids, run.model.tokens(ids), strict=True)
    ]
    return found[0], found[1] if len(found) > 1 else None


def _by_layer(
    figures: Mapping[tuple[int, int], float | None],
) -> dict[int, list[float | None]]:
    rows: dict[int, list[float | None]] = {}
    for (layer, _), figure in figures.items():
        rows.setdefault(layer, []).append(figure)
    return rows


def _scored(
    figures: dict[tuple[int, int], float | None], command: str
) -> dict[tuple[int, int], float | None]:
    if all(figure is None for figure in figures.values()):
        raise LensError(
            "these lenses were never measured so", hint=f"measure them with `{command}`"
        )
    return figures


def _known(figure: float | None) -> float | None:
    return None if figure is None or math.isnan(figure) else plain(figure)
