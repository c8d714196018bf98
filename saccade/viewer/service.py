"""Answers to questions about a model: each is one call of `interp`, with a cache of runs."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, final

from cachetools import LRUCache
from jaxtyping import Int
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.interp.effects.effects import EVERY_KIND, Part, effects_of_run
from saccade.interp.effects.graph import Flow, FlowEdge, find_flow
from saccade.interp.effects.joined_pass import CopyRun
from saccade.interp.effects.positions import HeadAt
from saccade.interp.effects.replacement import Replacement, reference_text
from saccade.interp.effects.target import Target
from saccade.interp.heads.intervene import Change
from saccade.interp.lenses.lens_set import Lenses, share_explained
from saccade.interp.lenses.top_tokens import TokenValue
from saccade.interp.readings.attribution_map import (
    AttributionMap,
    CellEffect,
    attribution_map,
    cell_effect,
    short_enough,
)
from saccade.interp.readings.generation import GeneratedToken, HeadShare, generate
from saccade.interp.readings.reader import Measured, Prompt, lens_logits_of, measure, reading_of
from saccade.interp.readings.reading import Reading
from saccade.interp.readings.reading_table import Predictions, predictions
from saccade.interp.readings.text_run import TextRun
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
from saccade.interp.studies.edit.asked_edit import AskedChange, Elsewhere, make_change
from saccade.interp.studies.edit.edit_file import Edit, edit_of
from saccade.interp.studies.head_measures import HeadMap, Row
from saccade.interp.studies.intervention_trial import Acted, Outcome, what_happened
from saccade.interp.studies.prompt_contrast import Compared, compare_prompts
from saccade.interp.studies.roles.roles import QUICK, find_roles
from saccade.viewer import schemas as q
from saccade.viewer.worker import OpenedModel, Progress, sized_cache

# Lenses: their provenance and their quality.

LABELS = {
    "explained": "share of the baseline lens's KL that the lens removes",
    "kl": "KL(model || lens), nats per token",
    "gain": "KL of the baseline lens minus KL of the lens, nats per token",
    "ablation": "correlation of the lens prediction with the effect of ablating the head",
    "alignment": "the same with resample ablation, within each position",
    "spearman": "rank correlation of the influence on lens and on model, over the causal basis",
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
    found = {name: {s: each.get(name) for s, each in quality.items()} for name in lenses.quality}
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


# Answers that also name their lenses.


@dataclass(frozen=True, kw_only=True)
class ReadingAnswer(Reading):
    """A reading of all heads, and the name of its lenses."""

    lens: str | None
    """None for a reading of effects alone."""


@dataclass(frozen=True, kw_only=True)
class CompareAnswer(Compared):
    """A comparison of two prompts, and the name of the lenses."""

    lens: str


@dataclass(frozen=True, kw_only=True)
class ActAnswer(Outcome):
    """The effect of changes, and the name of the lenses that predicted it."""

    lens: str | None


@dataclass(frozen=True, kw_only=True)
class LensAgreements:
    """By lens: how far the change it predicts agrees with the effect of the head here."""

    lenses: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class WrittenToken:
    """A token that the model writes, and the effect of every head on it."""

    position: int
    token: TokenValue
    is_end: bool
    heads: tuple[HeadShare, ...]


@dataclass(frozen=True, kw_only=True)
class NamedNode:
    """A head at a position, by the name that edges use."""

    name: str
    layer: int
    head: int
    position: int
    attribution: float
    direct: float
    elsewhere: float
    exact: float


@dataclass(frozen=True, kw_only=True)
class FlowAnswer:
    """The graph of one prediction; the fields are those of `Flow`."""

    model: str
    tokens: list[str]
    position: int
    token: str
    against: str | None
    score: float
    threshold: float
    kept: float
    agreement: float | None
    nodes: tuple[NamedNode, ...]
    edges: tuple[FlowEdge, ...]

    @classmethod
    def of(cls, flow: Flow) -> FlowAnswer:
        """With names and agreement as fields."""
        found = flow.to_dict()
        nodes = tuple(NamedNode(**each) for each in found.pop("nodes"))
        edges = tuple(FlowEdge(**each) for each in found.pop("edges"))
        return cls(**found, nodes=nodes, edges=edges)


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


# Files for download.

FOLDER = "edit"


def zipped_edit(edit: Edit) -> bytes:
    """An edit's folder as a zip file."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / FOLDER
        edit.save(folder)
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, f"{FOLDER}/{file.name}")
    return content.getvalue()


WRITTEN = 4  # texts that are being generated
FLOWS = 32  # graphs in the cache: some hundred kilobytes each
NO_LENS = "none"  # of a reading of effects alone

RUN_BYTES = (
    2**29
)  # size of the cache of runs: some hundred short prompts, or a few of a thousand tokens
DIGITS = 4  # decimals of an attention weight; more cannot be seen


@final
class ModelService:
    """Answers everything that needs the model; used by one thread only."""

    def __init__(self, opened: OpenedModel) -> None:
        self.model, self.lenses, self.problem = opened
        self._runs: LRUCache[str, TextRun] = sized_cache(RUN_BYTES, size=lambda run: run.n_bytes)
        self._effect_runs: LRUCache[str, CopyRun] = sized_cache(RUN_BYTES, size=_bytes_of)
        self._written: LRUCache[str, _Written] = LRUCache(WRITTEN)
        self._flows: LRUCache[str, Flow] = LRUCache(FLOWS)
        self._roles: RoleScores | None = None

    def about(self) -> tuple[AboutLenses, ...]:
        """The lenses, with provenance and quality."""
        return self._about

    @cached_property
    def _about(self) -> tuple[AboutLenses, ...]:
        return tuple(about_lenses(name, each) for name, each in self.lenses.items())

    def reading(self, question: q.ReadingQuestion, _: Progress) -> ReadingAnswer:
        """What all heads do and know: as `saccade read --mlp --all --json`."""
        name, lenses = (None, None) if question.lens == NO_LENS else self._lens_if_any(question)
        run, measured = self._measured(question)
        target = self._target(run, question)
        replacement = self._replacement(question.ablate)
        effects = effects_of_run(
            self.model,
            measured,
            replacement=replacement,
            kinds=EVERY_KIND,
            targets=target,
            top=min(question.top, self.model.d_vocab),
            lens_logits=None if lenses is None else lens_logits_of(lenses),
        )
        at = run.position(question.position)
        reading = reading_of(
            self.model,
            Prompt(run.text, run.ids[:, : at + 1], run.tokens),
            Measured(measured, effects),
            0,
            lenses=lenses,
            top=min(question.top, self.model.d_vocab),
        )
        return ReadingAnswer(**vars(reading), lens=name)

    def predictions(self, question: q.PredictionsQuestion, _: Progress) -> Predictions:
        """The predictions of the model at each position."""
        return predictions(self._run(question.text, question.changes), top=question.top)

    def measure(self, question: q.MeasureQuestion, progress: Progress) -> HeadMap:
        """One value per head."""
        run, at = self._run(question.text, question.changes), question.position
        match question.measure:
            case "gain":
                return measures.lens_gain(self._chosen(question.lens)[1])
            case "fidelity":
                return measures.lens_fidelity(self._chosen(question.lens)[1])
            case "lens":
                return measures.lens_kl(self._chosen(question.lens)[1], run, position=at)
            case "entropy":
                return measures.attention_entropy(run, position=at)
            case "mass":
                words, lenses = _word_list(question.words), self._chosen(question.lens)[1]
                return measures.mass_on_words(lenses, run, words, position=at)
            case "effect" | "token" | "direct" as of_effects:
                asked = q.ReadingQuestion(
                    **question.model_dump(exclude={"measure", "words", "lens"}), top=1, lens=NO_LENS
                )
                return measures.effect_map(self.reading(asked, progress), of_effects)

    def head(self, question: q.HeadQuestion, _: Progress) -> HeadCard:
        """One head through every lens."""
        return head_card(
            self._run(question.text, question.changes),
            self.lenses,
            layer=question.layer,
            head=question.head,
            position=question.position,
            top=question.top,
        )

    def agreement(self, question: q.HeadQuestion, _: Progress) -> LensAgreements:
        """How far each lens of a head agrees with the effect of the head here."""
        self.model.check_head(question.layer, question.head)
        _run, measured = self._measured(question)
        part = Part(question.layer, question.head, "head")
        found = {
            name: effects_of_run(
                self.model,
                measured,
                replacement=self._mean,
                kinds=EVERY_KIND,
                top=1,
                lens_logits=lens_logits_of(lenses),
                layers=[question.layer],
            )[0]
            .parts[part]
            .lens_agreement
            for name, lenses in self.lenses.items()
        }
        return LensAgreements(lenses=found)

    def attention(self, question: q.AttentionQuestion, _: Progress) -> Attention:
        """Attention weights of one head, from every position."""
        self.model.check_head(question.layer, question.head)
        run = self._run(question.text, question.changes)
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
            found = find_roles(self.model, roles=QUICK, leave_out=True)
            self._roles = RoleScores(**json.loads(found.to_json()))
        return self._roles

    def positions(self, question: q.PositionsQuestion, _: Progress) -> PositionGrid:
        """The prediction of each layer at each position."""
        run, span = self._run(question.text, question.changes), Span(question.first, question.count)
        return position_grid(run, self._site(question.head, question.lens), span, top=question.top)

    def ranks(self, question: q.RanksQuestion, _: Progress) -> TokenRanks:
        """Ranks of tokens at each layer and position."""
        run, span = self._run(question.text, question.changes), Span(question.first, question.count)
        tokens = list(dict.fromkeys(measures.token_asked(run, token) for token in question.tokens))
        return token_ranks(run, self._site(question.head, question.lens), span, tokens)

    def attribution(self, question: q.AttributionQuestion, _: Progress) -> AttributionMap:
        """Every head at every position, at first order: what each gives to one prediction."""
        run, replacement = self._unmeasured(question)
        with measures.changed(run):
            return attribution_map(
                run,
                self._target(run, question),
                replacement=replacement,
                position=question.position,
            )

    def cell(self, question: q.CellQuestion, _: Progress) -> CellEffect:
        """The exact effect of one head at one position on a later prediction."""
        run, replacement = self._unmeasured(question)
        head = HeadAt(question.layer, question.head, (run.position(question.at),))
        with measures.changed(run):
            return cell_effect(
                run,
                self._target(run, question),
                head,
                replacement=replacement,
                position=question.position,
            )

    def flow(self, question: q.FlowQuestion, _: Progress) -> FlowAnswer:
        """The graph of one prediction: as `saccade heads flow --json`."""
        run, replacement = self._unmeasured(question)
        at, target = short_enough(run, question.position), self._target(run, question)
        key = question.model_dump_json(exclude={"threshold"})
        if key not in self._flows:
            with measures.changed(run):
                self._flows[key] = find_flow(
                    self.model, run.ids[:, : at + 1], target, replacement=replacement
                )
        return FlowAnswer.of(self._flows[key].pruned(question.threshold))

    def generate(self, question: q.GenerateQuestion, progress: Progress) -> WrittenToken:
        """One token that the model writes, with the effect of every head on it.

        Tokens are written once, in their order: the text so far is kept.
        """
        key = question.model_dump_json(exclude={"index"})
        if key not in self._written:
            run = self._run(question.text, [])  # refuses a text that is too long
            room = self.model.max_positions or q.MOST_TOKENS
            self._written[key] = _Written(
                generate(
                    self.model,
                    question.text,
                    tokens=max(0, min(q.MOST_WRITTEN, room - len(run.tokens))),
                    temperature=question.temperature,
                    seed=question.seed,
                    replacement=self._mean,
                )
            )
        found = self._written[key].token(question.index, progress)
        return WrittenToken(
            position=found.position, token=found.token, is_end=found.is_end, heads=found.heads
        )

    def compare(self, question: q.CompareQuestion, _: Progress) -> CompareAnswer:
        """Two prompts, compared."""
        name, lenses = self._chosen(question.lens)
        runs = (
            self._run(question.text, question.changes),
            self._run(question.other, question.changes),
        )
        found = compare_prompts(
            lenses, runs, token=question.token, against=question.against, top=question.top
        )
        return CompareAnswer(**vars(found), lens=name)

    def act(self, question: q.ActQuestion, _: Progress) -> ActAnswer:
        """The model before and after changes."""
        name, lenses = self._chosen(question.lens) if self.lenses else (None, None)
        before, after = (
            self._run(question.text, []),
            self._run(question.text, question.changes, question.lens),
        )
        acted = Acted(before, after)
        found = what_happened(
            lenses, acted, token=question.token, top=question.top, say=question.say
        )
        return ActAnswer(**vars(found), lens=name)

    def edit(self, question: q.ActQuestion, _: Progress) -> bytes:
        """Injections as a folder that `saccade edit --load` takes, packed as a zip file."""
        changes = self._run(question.text, question.changes, question.lens).changes
        return zipped_edit(edit_of(self.model, changes, prompt=question.text))

    def _chosen(self, name: str | None) -> tuple[str, Lenses]:
        if not self.lenses:
            raise self.problem or LensError(
                "there are no lenses", hint="fit some with `saccade lens fit`"
            )
        if name is None:
            name = next(iter(self.lenses))
        if name not in self.lenses:
            raise UsageError(
                f"no lenses {name!r}: there are {', '.join(self.lenses)}",
                hint="load others with `saccade view --lens FOLDER`",
            )
        return name, self.lenses[name]

    def _lens_if_any(self, question: q.ReadingQuestion) -> tuple[str | None, Lenses | None]:
        if not self.lenses and question.lens is None:
            return None, None
        return self._chosen(question.lens)

    def _unmeasured(self, question: q.AttributionQuestion) -> tuple[TextRun, Replacement]:
        return self._run(question.text, question.changes), self._replacement(question.ablate)

    def _target(self, run: TextRun, question: q.ReadingQuestion | q.AttributionQuestion) -> Target:
        return measures.target_at(
            run, position=question.position, token=question.token, against=question.against
        )

    def _replacement(self, ablate: str) -> Replacement:
        return Replacement.zero(self.model) if ablate == "zero" else self._mean

    def _measured(self, question: q.ReadingQuestion | q.HeadQuestion) -> tuple[TextRun, CopyRun]:
        """The run in which every part is replaced: another token or lens needs no new one."""
        run = self._run(question.text, question.changes)
        at = run.position(question.position)
        ablate = question.ablate if isinstance(question, q.ReadingQuestion) else "mean"
        dumped = [each.model_dump(mode="json") for each in question.changes]
        key = json.dumps([question.text, dumped, at, ablate])
        if key not in self._effect_runs:
            with measures.changed(run):
                self._effect_runs[key] = measure(
                    self.model,
                    [Prompt(run.text, run.ids[:, : at + 1], run.tokens)],
                    lenses=None,
                    replacement=self._replacement(ablate),
                    targets=None,
                    kinds=EVERY_KIND,
                    top=1,
                ).run
        return run, self._effect_runs[key]

    def _site(self, head: int | None, name: str | None) -> Site:
        if head is None and name in (None, UNEMBEDDING):
            return Site(name=UNEMBEDDING, lenses=None)
        name, lenses = self._chosen(name)
        return Site(name=name, lenses=lenses, head=head)

    def _run(self, text: str, changes: Sequence[q.AnyChange], lens: str | None = None) -> TextRun:
        dumped = [each.model_dump(mode="json") for each in changes]
        used_lens = lens if any(each.get("form") == "lens" for each in dumped) else None
        key = json.dumps([text, dumped, used_lens])
        run = self._runs.pop(key, None) or self._new_run(text, changes, lens)
        self._runs[key] = run  # stored again, to update its size: a run grows with its questions
        return run

    def _new_run(self, text: str, changes: Sequence[q.AnyChange], lens: str | None) -> TextRun:
        applied = self._changes(text, changes, lens) if changes else []
        return TextRun(self.model, text, changes=applied, limit=q.MOST_TOKENS)

    def _changes(self, text: str, changes: Sequence[q.AnyChange], lens: str | None) -> list[Change]:
        requested = _requested(changes)
        lenses = self._chosen(lens)[1] if any(each.form == "lens" for each in requested) else None
        return [
            make_change(self.model, each, prompt=text, elsewhere=self._elsewhere, lenses=lenses)
            for each in requested
        ]

    @cached_property
    def _elsewhere(self) -> Elsewhere:
        return Elsewhere(self.model, lambda: self._reference)

    @cached_property
    def _reference(self) -> Int[Tensor, "batch pos"]:
        return reference_text(self.model)

    @cached_property
    def _mean(self) -> Replacement:
        return Replacement.usual(self.model)


class _Written:
    """A text that is being generated."""

    def __init__(self, tokens: Iterator[GeneratedToken]) -> None:
        self._rest = tokens
        self._tokens: list[GeneratedToken] = []

    def token(self, index: int, progress: Progress) -> GeneratedToken:
        while len(self._tokens) <= index:
            progress("writing", len(self._tokens), index + 1)
            found = next(self._rest, None)
            if found is None:
                raise UsageError(
                    f"the text ends after {len(self._tokens)} tokens",
                    hint="begin with another prompt, or a temperature",
                )
            self._tokens.append(found)
        return self._tokens[index]


def _bytes_of(run: CopyRun) -> int:
    kept = [run.states, run.captured.final, *run.feed_forward.values()]
    for each in (run.captured.z, run.captured.residual, run.captured.attention):
        kept += each.values()
    return sum(each.numel() * each.element_size() for each in kept)


def _requested(changes: Sequence[q.AnyChange]) -> list[AskedChange]:
    found = []
    for each in changes:
        fields = each.model_dump()
        positions = fields.pop("positions")
        found.append(
            AskedChange(**fields, positions=None if positions is None else tuple(positions))
        )
    return found


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
