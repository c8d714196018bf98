"""Answers questions about a model: each is one call of the rooms below, from runs that are kept."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, final

from cachetools import LRUCache
from jaxtyping import Int
from torch import Tensor

from saccade.errors import LensError, ModelError, UsageError
from saccade.interp.heads.intervene import Change
from saccade.interp.lenses.lens_set import Lenses
from saccade.interp.lenses.reading import Reading, read_run, share_explained
from saccade.interp.lenses.reading_table import Predictions, predictions
from saccade.interp.lenses.text_run import TextRun
from saccade.interp.lenses.views import (
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
from saccade.interp.studies.head_rank import Replacement, reference_text
from saccade.interp.studies.intervention_trial import Acted, Outcome, what_happened
from saccade.interp.studies.prompt_contrast import Compared, compare_prompts
from saccade.interp.studies.roles import find_roles
from saccade.viewer import schemas as q
from saccade.viewer.worker import Opened, Progress, sized_cache

# Lenses as the page shows them: what they were made from, and how good each is.

LABELS = {
    "explained": "share of the baseline lens's KL that the lens removes",
    "kl": "KL(model || lens), nats a token",
    "gain": "nats a token nearer to the model than the baseline lens",
    "ablation": "correlation of what the lens says with what removing the head does",
    "alignment": "the same as the head is resampled, within each position",
    "spearman": "rank correlation of influence on lens and model, over the causal basis",
    "agreement": "share of tokens where the lens's first token is the model's",
}


@dataclass(frozen=True, kw_only=True)
class LensMap:
    """How good the lenses are by one measure."""

    measure: str
    label: str
    is_two_way: bool
    mean: float | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class AboutLenses:
    """What lenses were made from, and how good they are."""

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
    """A set of lenses, by the name that it has on the page."""
    provenance = lenses.provenance
    return AboutLenses(
        name=name,
        kind=provenance.kind,
        site=next(iter(lenses.by_layer.values())).site,
        method=provenance.method,
        objective=provenance.objective,
        # Where a file lies on this machine is nobody's business on a page that may be shared.
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
    if any(figure is not None for figure in explained.values()):
        found = {"explained": explained, **found}
    return tuple(_map(name, figures) for name, figures in found.items())


def _map(name: str, figures: Mapping[tuple[int, int], float | None]) -> LensMap:
    rows: dict[int, list[float | None]] = {}
    for (layer, _), figure in figures.items():
        rows.setdefault(layer, []).append(figure)
    known = [figure for figure in figures.values() if figure is not None]
    return LensMap(
        measure=name,
        label=LABELS.get(name, name),
        is_two_way=measures.is_two_way(known),
        mean=sum(known) / len(known) if known else None,
        rows=measures.rows_of(rows),
    )


# Answers that say besides which lenses they were read with.


@dataclass(frozen=True, kw_only=True)
class ReadingAnswer(Reading):
    """What every head says, and the name of its lenses."""

    lens: str


@dataclass(frozen=True, kw_only=True)
class CompareAnswer(Compared):
    """Two prompts side by side, and the name of the lenses."""

    lens: str


@dataclass(frozen=True, kw_only=True)
class ActAnswer(Outcome):
    """What changes do, and the name of the lenses that foretold it."""

    lens: str | None


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Where a head looks: row i has i + 1 weights."""

    layer: int
    head: int
    tokens: list[str]
    weights: list[list[float]]


@dataclass(frozen=True, kw_only=True)
class RoleScores:
    """What each head is there for: its layer, its number and a score for each role."""

    model: str
    seed: int
    heads: list[dict[str, int | float | None]]


# Files for the user to take away.

FOLDER = "edit"


def packed_edit(edit: Edit) -> bytes:
    """An edit's folder as a zip file."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / FOLDER
        edit.save(folder)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, f"{FOLDER}/{file.name}")
    return packed.getvalue()


RUN_BYTES = 2**29  # of runs kept: some hundred short prompts, or a few of a thousand tokens
DIGITS = 4  # of an attention weight; a shade has fewer


@final
class ReadingRoom:
    """Everything that needs the model; used by one thread only."""

    def __init__(self, opened: Opened) -> None:
        self.model, self.lenses, self.problem = opened
        self._runs: LRUCache[str, TextRun] = sized_cache(RUN_BYTES, size=lambda run: run.n_bytes)
        self._roles: RoleScores | None = None

    def about(self) -> tuple[AboutLenses, ...]:
        """The lenses and how good they are."""
        return self._about

    @cached_property
    def _about(self) -> tuple[AboutLenses, ...]:
        return tuple(about_lenses(name, each) for name, each in self.lenses.items())

    def reading(self, asked: q.ReadingQuestion, _: Progress) -> ReadingAnswer:
        """What every head says: as `saccade read --all --unembedding --json`."""
        name, lenses = self._chosen(asked.lens)
        run = self._run(asked.text, asked.changes)
        reading = read_run(lenses, run, position=asked.position, top=asked.top, unembedding=True)
        return ReadingAnswer(**vars(reading), lens=name)

    def predictions(self, asked: q.PredictionsQuestion, _: Progress) -> Predictions:
        """What the model predicts at each position."""
        return predictions(self._run(asked.text, asked.changes), top=asked.top)

    def measure(self, asked: q.MeasureQuestion, progress: Progress) -> HeadMap:
        """One figure of each head."""
        run, at = self._run(asked.text, asked.changes), asked.position
        match asked.measure:
            case "gain":
                return measures.lens_gain(self._chosen(asked.lens)[1])
            case "fidelity":
                return measures.lens_fidelity(self._chosen(asked.lens)[1])
            case "lens":
                return measures.lens_kl(self._chosen(asked.lens)[1], run, position=at)
            case "entropy":
                return measures.attention_entropy(run, position=at)
            case "mass":
                words, lenses = _word_list(asked.words), self._chosen(asked.lens)[1]
                return measures.mass_on_words(lenses, run, words, position=at)
        target = measures.target_at(run, position=at, token=asked.token, against=asked.against)
        if asked.measure == "direct":
            return measures.direct_effects(run, target, position=at)
        by = Replacement("zero") if asked.ablate == "zero" else self._mean
        return measures.ablation_effects(
            run, target, position=at, replacement=by, progress=progress
        )

    def head(self, asked: q.HeadQuestion, _: Progress) -> HeadCard:
        """One head through every lens."""
        return head_card(
            self._run(asked.text, asked.changes),
            self.lenses,
            layer=asked.layer,
            head=asked.head,
            position=asked.position,
            top=asked.top,
        )

    def attention(self, asked: q.AttentionQuestion, _: Progress) -> Attention:
        """Where one head looks from every position."""
        self.model.check_head(asked.layer, asked.head)
        run = self._run(asked.text, asked.changes)
        rows = run.attention_of(asked.layer)[asked.head].float().tolist()
        return Attention(
            layer=asked.layer,
            head=asked.head,
            tokens=run.tokens,
            weights=[
                [round(weight, DIGITS) for weight in row[: at + 1]] for at, row in enumerate(rows)
            ],
        )

    def roles(self, _: q.NoQuestion, progress: Progress) -> RoleScores:
        """What each head is there for: as `saccade heads roles --json`."""
        if self._roles is None:
            progress("finds roles of heads", 0, 1)
            try:
                found = find_roles(self.model)
            except ModelError:  # its tokenizer splits names, which two of the roles are about
                found = find_roles(self.model, roles=("induction", "previous", "duplicate"))
            self._roles = RoleScores(**json.loads(found.to_json()))
        return self._roles

    def positions(self, asked: q.PositionsQuestion, _: Progress) -> PositionGrid:
        """What each layer says at each position."""
        run, span = self._run(asked.text, asked.changes), Span(asked.first, asked.count)
        return position_grid(run, self._site(asked.head, asked.lens), span, top=asked.top)

    def ranks(self, asked: q.RanksQuestion, _: Progress) -> TokenRanks:
        """Where tokens stand at each layer and position."""
        run, span = self._run(asked.text, asked.changes), Span(asked.first, asked.count)
        tokens = list(dict.fromkeys(measures.token_asked(run, token) for token in asked.tokens))
        return token_ranks(run, self._site(asked.head, asked.lens), span, tokens)

    def compare(self, asked: q.CompareQuestion, _: Progress) -> CompareAnswer:
        """Two prompts side by side."""
        name, lenses = self._chosen(asked.lens)
        runs = (self._run(asked.text, asked.changes), self._run(asked.other, asked.changes))
        found = compare_prompts(
            lenses, runs, token=asked.token, against=asked.against, top=asked.top
        )
        return CompareAnswer(**vars(found), lens=name)

    def act(self, asked: q.ActQuestion, _: Progress) -> ActAnswer:
        """The model before and after changes."""
        name, lenses = self._chosen(asked.lens) if self.lenses else (None, None)
        before, after = self._run(asked.text, []), self._run(asked.text, asked.changes, asked.lens)
        acted = Acted(before, after)
        found = what_happened(lenses, acted, token=asked.token, top=asked.top, say=asked.say)
        return ActAnswer(**vars(found), lens=name)

    def edit(self, asked: q.ActQuestion, _: Progress) -> bytes:
        """Injections as a folder that `saccade edit --load` takes, packed as a zip file."""
        changes = self._run(asked.text, asked.changes, asked.lens).changes
        return packed_edit(edit_of(self.model, changes, prompt=asked.text))

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
                hint="name others with `saccade view --lens FOLDER`",
            )
        return name, self.lenses[name]

    def _site(self, head: int | None, name: str | None) -> Site:
        if head is None and name in (None, UNEMBEDDING):
            return Site(name=UNEMBEDDING, lenses=None)
        name, lenses = self._chosen(name)
        return Site(name=name, lenses=lenses, head=head)

    def _run(self, text: str, changes: Sequence[q.AnyChange], lens: str | None = None) -> TextRun:
        said = [each.model_dump(mode="json") for each in changes]
        through = lens if any(each.get("form") == "lens" for each in said) else None
        key = json.dumps([text, said, through])
        run = self._runs.pop(key, None) or self._new_run(text, changes, lens)
        self._runs[key] = run  # weighed again: a run of a long text grows as it is asked about
        return run

    def _new_run(self, text: str, changes: Sequence[q.AnyChange], lens: str | None) -> TextRun:
        made = self._made(text, changes, lens) if changes else []
        return TextRun(self.model, text, changes=made, limit=q.MOST_TOKENS)

    def _made(self, text: str, changes: Sequence[q.AnyChange], lens: str | None) -> list[Change]:
        asked = _asked(changes)
        lenses = self._chosen(lens)[1] if any(each.form == "lens" for each in asked) else None
        return [
            make_change(self.model, each, prompt=text, elsewhere=self._elsewhere, lenses=lenses)
            for each in asked
        ]

    @cached_property
    def _elsewhere(self) -> Elsewhere:
        return Elsewhere(self.model, lambda: self._reference)

    @cached_property
    def _reference(self) -> Int[Tensor, "batch pos"]:
        return reference_text(self.model)

    @cached_property
    def _mean(self) -> Replacement:
        return Replacement.mean(self.model, self._reference)


def _asked(changes: Sequence[q.AnyChange]) -> list[AskedChange]:
    found = []
    for each in changes:
        said = each.model_dump()
        places = said.pop("positions")
        found.append(AskedChange(**said, positions=None if places is None else tuple(places)))
    return found


def _word_list(asked: str | None) -> list[str]:
    """Words by the name of a list, or between commas; never a file, whose name a page could give.

    >>> _word_list("she, her")
    ['she', 'her']
    """
    if asked is None:
        raise UsageError(
            "mass on which words?", hint="give the name of a list, or words with commas"
        )
    if asked in word_lists():
        return list(word_lists()[asked])
    return [word for each in asked.split(",") if (word := each.strip())]
