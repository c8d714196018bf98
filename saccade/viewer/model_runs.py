"""An open model as every answer about it starts: its lenses, and a cache of its runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import final

from cachetools import LRUCache
from jaxtyping import Int
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.interp.effects.effects import EVERY_KIND, effects_of_run
from saccade.interp.effects.joined_pass import CopyRun
from saccade.interp.effects.replacement import Replacement, reference_text
from saccade.interp.effects.target import Target
from saccade.interp.heads.intervene import Change
from saccade.interp.lenses.lens_set import Lenses
from saccade.interp.readings.reader import Measured, Prompt, lens_logits_of, measure, reading_of
from saccade.interp.readings.reading import Reading
from saccade.interp.readings.text_run import TextRun
from saccade.interp.studies import head_measures as measures
from saccade.interp.studies.edit.asked_edit import AskedChange, Elsewhere, make_change
from saccade.viewer import schemas as q
from saccade.viewer.worker import OpenedModel, sized_cache

# Size of the cache of runs: some hundred short prompts, or a few of a thousand tokens.
RUN_BYTES = 2**29


@final
class ModelRuns:
    """A model, its lenses, and its runs of texts; used by one thread only."""

    def __init__(self, opened: OpenedModel) -> None:
        self.model, self.lenses, self.problem = opened
        self._runs: LRUCache[str, TextRun] = sized_cache(RUN_BYTES, size=lambda run: run.n_bytes)
        self._effect_runs: LRUCache[str, CopyRun] = sized_cache(RUN_BYTES, size=_bytes_of)

    def chosen(self, name: str | None) -> tuple[str, Lenses]:
        """The lenses of a name, by default the first, with their name."""
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

    def target(self, run: TextRun, question: q.ReadingQuestion | q.AttributionQuestion) -> Target:
        """The score that a question is about."""
        return measures.target_at(
            run, position=question.position, token=question.token, against=question.against
        )

    def replacement(self, ablate: str) -> Replacement:
        """What replaces a head: zero, or its usual mean."""
        return Replacement.zero(self.model) if ablate == "zero" else self.mean

    def reading(
        self,
        about: q.AboutText,
        target: Target,
        *,
        position: int,
        ablate: str,
        lenses: Lenses | None,
        top: int,
    ) -> Reading:
        """What all heads, attention layers and feed-forward parts do to a target, and know."""
        run, measured = self.measured(about, position, ablate)
        top = min(top, self.model.d_vocab)
        effects = effects_of_run(
            self.model,
            measured,
            replacement=self.replacement(ablate),
            kinds=EVERY_KIND,
            targets=target,
            top=top,
            lens_logits=None if lenses is None else lens_logits_of(lenses),
        )
        prompt = Prompt(run.text, run.ids[:, : run.position(position) + 1], run.tokens)
        return reading_of(
            self.model, prompt, Measured(measured, effects), 0, lenses=lenses, top=top
        )

    def measured(self, about: q.AboutText, position: int, ablate: str) -> tuple[TextRun, CopyRun]:
        """The run in which every part is replaced: another token or lens needs no new one."""
        run = self.run(about.text, about.changes)
        at = run.position(position)
        dumped = [each.model_dump(mode="json") for each in about.changes]
        key = json.dumps([about.text, dumped, at, ablate])
        if key not in self._effect_runs:
            with measures.changed(run):
                self._effect_runs[key] = measure(
                    self.model,
                    [Prompt(run.text, run.ids[:, : at + 1], run.tokens)],
                    lenses=None,
                    replacement=self.replacement(ablate),
                    targets=None,
                    kinds=EVERY_KIND,
                    top=1,
                ).run
        return run, self._effect_runs[key]

    def run(self, text: str, changes: Sequence[q.AnyChange], lens: str | None = None) -> TextRun:
        """The run of a text, by the unchanged model or the model with changes."""
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
        lenses = self.chosen(lens)[1] if any(each.form == "lens" for each in requested) else None
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
    def mean(self) -> Replacement:
        """The usual mean."""
        return Replacement.usual(self.model)


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
