"""Answers about what a model and its lenses read from a text: one call of `interp` each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, final

from saccade.errors import UsageError
from saccade.interp.effects.effects import EVERY_KIND, Part, effects_of_run
from saccade.interp.lenses.lens_set import Lenses, share_explained
from saccade.interp.readings.reader import lens_logits_of
from saccade.interp.readings.reading import Reading
from saccade.interp.readings.reading_table import Predictions, predictions
from saccade.interp.readings.views import (
    UNEMBEDDING,
    HeadCard,
    PositionGrid,
    Site,
    Span,
    TokenRanks,
    head_card,
    position_grid,
    token_ranks,
)
from saccade.interp.studies import head_measures as measures
from saccade.interp.studies.bias.bias_words import word_lists
from saccade.interp.studies.head_measures import HeadMap, Row
from saccade.interp.studies.roles.roles import QUICK, find_roles
from saccade.viewer import schemas as q
from saccade.viewer.model_runs import ModelRuns
from saccade.viewer.worker import Progress

NO_LENS = "none"  # of a reading of effects alone
DIGITS = 4  # decimals of an attention weight; more cannot be seen


# Lenses: their provenance and their quality.

# The rank correlation over the causal basis: the variance of the activation along the same
# directions ranks them as well, so it tells nothing about a lens (docs/uses/fidelity.md).
NOT_SHOWN = {"spearman"}
LABELS = {
    "explained": "share of the baseline lens's KL that the lens removes",
    "kl": "KL(model || lens), nats per token",
    "gain": "KL of the baseline lens minus KL of the lens, nats per token",
    "ablation": "correlation of the lens prediction with the effect of ablating the head",
    "alignment": "the same with resample ablation, within each position",
    "agreement": "share of positions where the top token of the lens is that of the model",
}


@dataclass(frozen=True, kw_only=True)
class LensMap:
    """Quality of the lenses by one metric."""

    measure: str
    label: str
    is_two_way: bool
    mean: float | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class AboutLenses:
    """Provenance and quality of a set of lenses."""

    name: str
    kind: str
    site: str
    method: str
    objective: str
    corpus: str
    n_tokens: int
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]
    model_fingerprint: str
    measures: tuple[LensMap, ...]


def about_lenses(name: str, lenses: Lenses) -> AboutLenses:
    """Provenance and quality of a set of lenses; ``name`` is its name on the page."""
    provenance = lenses.provenance
    return AboutLenses(
        name=name,
        kind=provenance.kind,
        site=next(iter(lenses.by_layer.values())).site,
        method=provenance.method,
        objective=provenance.objective,
        # A page may be shared: it must not show paths of this machine.
        corpus=PurePath(provenance.corpus).name if "/" in provenance.corpus else provenance.corpus,
        n_tokens=provenance.n_tokens,
        seed=provenance.seed,
        settings=provenance.settings,
        versions=provenance.versions,
        model_fingerprint=provenance.model_fingerprint,
        measures=_measures(lenses),
    )


def _measures(lenses: Lenses) -> tuple[LensMap, ...]:
    sites = lenses.sites
    quality = {site: lenses.quality_of(*site) for site in sites}
    explained = {site: share_explained(each) for site, each in quality.items()}
    names = [name for name in lenses.quality if name not in NOT_SHOWN]
    found = {name: {s: each.get(name) for s, each in quality.items()} for name in names}
    if any(value is not None for value in explained.values()):
        found = {"explained": explained, **found}
    return tuple(_map(name, values) for name, values in found.items())


def _map(name: str, values: Mapping[tuple[int, int], float | None]) -> LensMap:
    rows: dict[int, list[float | None]] = {}
    for (layer, _), value in values.items():
        rows.setdefault(layer, []).append(value)
    known = [value for value in values.values() if value is not None]
    return LensMap(
        measure=name,
        label=LABELS.get(name, name),
        is_two_way=measures.is_two_way(known),
        mean=sum(known) / len(known) if known else None,
        rows=measures.rows_of(rows),
    )


# Answers.


@dataclass(frozen=True, kw_only=True)
class ReadingAnswer(Reading):
    """A reading of all heads, and the name of its lenses."""

    lens: str | None
    """None for a reading of effects alone."""


@dataclass(frozen=True, kw_only=True)
class LensAgreements:
    """By lens: how far the change it predicts agrees with the effect of the head here."""

    lenses: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention weights of a head: row i has i + 1 weights."""

    layer: int
    head: int
    tokens: list[str]
    weights: list[list[float]]


@dataclass(frozen=True, kw_only=True)
class RoleScores:
    """Roles of all heads: layer, number and one score per role."""

    model: str
    seed: int
    heads: list[dict[str, int | float | None]]
    tests: dict[str, dict[str, Any]]
    """By role: its published test, and the interval of each head, in the order of ``heads``."""
    left_out: dict[str, str]


@final
class ReadingService:
    """Answers of the screens that read one text; used by one thread only."""

    def __init__(self, runs: ModelRuns) -> None:
        self._runs = runs
        self._roles: RoleScores | None = None

    def about(self) -> tuple[AboutLenses, ...]:
        """The lenses, with provenance and quality."""
        return self._about

    @cached_property
    def _about(self) -> tuple[AboutLenses, ...]:
        return tuple(about_lenses(name, each) for name, each in self._runs.lenses.items())

    def reading(self, question: q.ReadingQuestion, _: Progress) -> ReadingAnswer:
        """What all heads do and know: as `saccade read --mlp --all --json`."""
        name, lenses = self._lenses_of(question)
        run = self._runs.run(question.text, question.changes)
        reading = self._runs.reading(
            question,
            self._runs.target(run, question),
            position=question.position,
            ablate=question.ablate,
            lenses=lenses,
            top=question.top,
        )
        return ReadingAnswer(**vars(reading), lens=name)

    def predictions(self, question: q.PredictionsQuestion, _: Progress) -> Predictions:
        """The predictions of the model at each position."""
        return predictions(self._runs.run(question.text, question.changes), top=question.top)

    def measure(self, question: q.MeasureQuestion, progress: Progress) -> HeadMap:
        """One value per head."""
        run, at = self._runs.run(question.text, question.changes), question.position
        match question.measure:
            case "gain":
                return measures.lens_gain(self._runs.chosen(question.lens)[1])
            case "fidelity":
                return measures.lens_fidelity(self._runs.chosen(question.lens)[1])
            case "lens":
                return measures.lens_kl(self._runs.chosen(question.lens)[1], run, position=at)
            case "entropy":
                return measures.attention_entropy(run, position=at)
            case "mass":
                words, lenses = _word_list(question.words), self._runs.chosen(question.lens)[1]
                return measures.mass_on_words(lenses, run, words, position=at)
            case "effect" | "token" | "direct" as of_effects:
                asked = q.ReadingQuestion(
                    **question.model_dump(exclude={"measure", "words", "lens"}), top=1, lens=NO_LENS
                )
                return measures.effect_map(self.reading(asked, progress), of_effects)

    def head(self, question: q.HeadQuestion, _: Progress) -> HeadCard:
        """One head through every lens."""
        return head_card(
            self._runs.run(question.text, question.changes),
            self._runs.lenses,
            layer=question.layer,
            head=question.head,
            position=question.position,
            top=question.top,
        )

    def agreement(self, question: q.HeadQuestion, _: Progress) -> LensAgreements:
        """How far each lens of a head agrees with the effect of the head here."""
        self._runs.model.check_head(question.layer, question.head)
        measured = self._runs.measured(question, question.position, "mean")[1]
        part = Part(question.layer, question.head, "head")
        found = {
            name: effects_of_run(
                self._runs.model,
                measured,
                replacement=self._runs.mean,
                kinds=EVERY_KIND,
                top=1,
                lens_logits=lens_logits_of(lenses),
                layers=[question.layer],
            )[0]
            .parts[part]
            .lens_agreement
            for name, lenses in self._runs.lenses.items()
        }
        return LensAgreements(lenses=found)

    def attention(self, question: q.AttentionQuestion, _: Progress) -> Attention:
        """Attention weights of one head, from every position."""
        self._runs.model.check_head(question.layer, question.head)
        run = self._runs.run(question.text, question.changes)
        rows = run.attention_of(question.layer)[question.head].float().tolist()
        return Attention(
            layer=question.layer,
            head=question.head,
            tokens=run.tokens,
            weights=[
                [round(weight, DIGITS) for weight in row[: at + 1]] for at, row in enumerate(rows)
            ],
        )

    def roles(self, _: q.NoQuestion, progress: Progress) -> RoleScores:
        """Scores of all heads for each role: as `saccade heads roles --json`."""
        if self._roles is None:
            progress("scoring roles of heads", 0, 1)
            found = find_roles(self._runs.model, roles=QUICK, leave_out=True)
            self._roles = RoleScores(**json.loads(found.to_json()))
        return self._roles

    def positions(self, question: q.PositionsQuestion, _: Progress) -> PositionGrid:
        """The prediction of each layer at each position."""
        run, span = (
            self._runs.run(question.text, question.changes),
            Span(question.first, question.count),
        )
        return position_grid(run, self._site(question.head, question.lens), span, top=question.top)

    def ranks(self, question: q.RanksQuestion, _: Progress) -> TokenRanks:
        """Ranks of tokens at each layer and position."""
        run, span = (
            self._runs.run(question.text, question.changes),
            Span(question.first, question.count),
        )
        tokens = list(dict.fromkeys(measures.token_asked(run, token) for token in question.tokens))
        return token_ranks(run, self._site(question.head, question.lens), span, tokens)

    def _lenses_of(self, question: q.ReadingQuestion) -> tuple[str | None, Lenses | None]:
        has_none = not self._runs.lenses and question.lens is None
        if has_none or question.lens == NO_LENS:
            return None, None
        return self._runs.chosen(question.lens)

    def _site(self, head: int | None, name: str | None) -> Site:
        if head is None and name in (None, UNEMBEDDING):
            return Site(name=UNEMBEDDING, lenses=None)
        name, lenses = self._runs.chosen(name)
        return Site(name=name, lenses=lenses, head=head)


def _word_list(given: str | None) -> list[str]:
    """Words by the name of a list, or separated by commas; never a file that a page could name.

    >>> _word_list("she, her")
    ['she', 'her']
    """
    if given is None:
        raise UsageError(
            "the measure mass needs words",
            hint="give the name of a list, or words separated by commas",
        )
    if given in word_lists():
        return list(word_lists()[given])
    return [word for each in given.split(",") if (word := each.strip())]
