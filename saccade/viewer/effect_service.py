"""Answers about what heads do to one prediction, and what becomes of it when they are changed."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from cachetools import LRUCache

from saccade.errors import UsageError
from saccade.interp.effects.attribution import AttributionMap, attribution_map
from saccade.interp.effects.graph import Flow, find_flow
from saccade.interp.effects.positions import HeadAt, position_effects
from saccade.interp.effects.target import Target
from saccade.interp.lenses.top_tokens import TokenValue, plain
from saccade.interp.readings.generation import GeneratedToken, HeadShare, generate
from saccade.interp.readings.reading import Reading
from saccade.interp.readings.text_run import TextRun
from saccade.interp.studies import head_measures as measures
from saccade.interp.studies.edit.edit_file import Edit, edit_of
from saccade.interp.studies.intervention_trial import Acted, Outcome, what_happened
from saccade.interp.studies.prompt_contrast import Compared, compare_prompts
from saccade.viewer import schemas as q
from saccade.viewer.model_runs import ModelRuns
from saccade.viewer.worker import Progress

WRITTEN = 4  # texts that are being generated
FLOWS = 32  # graphs in the cache: some hundred kilobytes each
MOST_TOKENS = 256  # the backward pass keeps every activation, which grows with the text


@dataclass(frozen=True, kw_only=True)
class CompareAnswer(Compared):
    """A comparison of two prompts, and the name of the lenses."""

    lens: str | None


@dataclass(frozen=True, kw_only=True)
class ActAnswer(Outcome):
    """The effect of changes, and the name of the lenses that predicted it."""

    lens: str | None


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
        """For JSON, numbers to six digits."""
        return plain(self)


@dataclass(frozen=True, kw_only=True)
class WrittenToken:
    """A token that the model writes, and the effect of every head on it."""

    position: int
    token: TokenValue
    is_end: bool
    heads: tuple[HeadShare, ...]


@final
class EffectService:
    """Answers of the screens of effects and changes; used by one thread only."""

    def __init__(self, runs: ModelRuns) -> None:
        self._runs = runs
        self._written: LRUCache[str, _Written] = LRUCache(WRITTEN)
        self._flows: LRUCache[str, Flow] = LRUCache(FLOWS)

    def attribution(self, question: q.AttributionQuestion, _: Progress) -> AttributionMap:
        """Every head at every position, at first order: what each gives to one prediction."""
        run = self._runs.run(question.text, question.changes)
        at, target = _short_enough(run, question.position), self._runs.target(run, question)
        with measures.changed(run):
            return attribution_map(
                self._runs.model,
                run.ids[:, : at + 1],
                target,
                replacement=self._runs.replacement(question.ablate),
            )

    def cell(self, question: q.CellQuestion, _: Progress) -> CellEffect:
        """The exact effect of one head at one position on a later prediction."""
        run = self._runs.run(question.text, question.changes)
        at, position = run.position(question.at), run.position(question.position)
        if at > position:
            raise UsageError(
                f"token {at} comes after the prediction at {position}",
                hint="choose an earlier token, or a later prediction",
            )
        self._runs.model.check_head(question.layer, question.head)
        head, target = (
            HeadAt(question.layer, question.head, (at,)),
            self._runs.target(run, question),
        )
        with measures.changed(run):
            found = position_effects(
                self._runs.model,
                run.ids[:, : position + 1],
                [head],
                replacement=self._runs.replacement(question.ablate),
                target=target,
            )[head]
        token, against = target.names(self._runs.model)
        return CellEffect(
            layer=head.layer,
            head=head.head,
            at=at,
            position=position,
            token=token,
            against=against,
            kl=found.kl,
            on_token=found.on_token,
        )

    def flow(self, question: q.FlowQuestion, _: Progress) -> Flow:
        """The graph of one prediction: as `saccade heads flow --json`."""
        run = self._runs.run(question.text, question.changes)
        at, target = _short_enough(run, question.position), self._runs.target(run, question)
        key = question.model_dump_json(exclude={"threshold"})
        if key not in self._flows:
            with measures.changed(run):
                self._flows[key] = find_flow(
                    self._runs.model,
                    run.ids[:, : at + 1],
                    target,
                    replacement=self._runs.replacement(question.ablate),
                )
        return self._flows[key].pruned(question.threshold)

    def generate(self, question: q.GenerateQuestion, progress: Progress) -> WrittenToken:
        """One token that the model writes, with the effect of every head on it.

        Tokens are written once, in their order: the text so far is kept.
        """
        key = question.model_dump_json(exclude={"index"})
        if key not in self._written:
            run = self._runs.run(question.text, [])  # refuses a text that is too long
            room = self._runs.model.max_positions or q.MOST_TOKENS
            self._written[key] = _Written(
                generate(
                    self._runs.model,
                    question.text,
                    tokens=max(0, min(q.MOST_WRITTEN, room - len(run.tokens))),
                    temperature=question.temperature,
                    seed=question.seed,
                    replacement=self._runs.mean,
                )
            )
        found = self._written[key].token(question.index, progress)
        return WrittenToken(
            position=found.position, token=found.token, is_end=found.is_end, heads=found.heads
        )

    def compare(self, question: q.CompareQuestion, _: Progress) -> CompareAnswer:
        """Two prompts, compared."""
        name, lenses = self._runs.chosen(question.lens) if self._runs.lenses else (None, None)
        texts = (question.text, question.other)
        left, right = (self._runs.run(text, question.changes) for text in texts)

        def read(text: str, target: Target) -> Reading:
            return self._runs.reading(
                q.AboutText(text=text, changes=question.changes),
                target,
                position=-1,
                ablate=question.ablate,
                lenses=lenses,
                top=question.top,
            )

        found = compare_prompts((left, right), read, token=question.token, against=question.against)
        return CompareAnswer(**vars(found), lens=name)

    def act(self, question: q.ActQuestion, _: Progress) -> ActAnswer:
        """The model before and after changes."""
        name, lenses = self._runs.chosen(question.lens) if self._runs.lenses else (None, None)
        before, after = (
            self._runs.run(question.text, []),
            self._runs.run(question.text, question.changes, question.lens),
        )
        acted = Acted(before, after)
        found = what_happened(
            lenses, acted, token=question.token, top=question.top, say=question.say
        )
        return ActAnswer(**vars(found), lens=name)

    def edit(self, question: q.ActQuestion, _: Progress) -> bytes:
        """Injections as a folder that `saccade edit --load` takes, packed as a zip file."""
        changes = self._runs.run(question.text, question.changes, question.lens).changes
        return zipped_edit(edit_of(self._runs.model, changes, prompt=question.text))


def _short_enough(run: TextRun, position: int) -> int:
    """The position, if a backward pass up to it is affordable."""
    at = run.position(position)
    if at >= MOST_TOKENS:
        raise UsageError(
            f"attribution takes at most {MOST_TOKENS} tokens, and the prediction is after {at + 1}",
            hint="choose an earlier token, or shorten the text",
        )
    return at


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
