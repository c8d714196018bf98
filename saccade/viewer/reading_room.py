"""Answers questions about a model: each is one call of the rooms below, from runs that are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from saccade.errors import LensError, ModelError, UsageError
from saccade.viewer import questions as q
from saccade.viewer.keeping import Keeping
from saccade.viewer.lens_shelf import about_lenses
from saccade.viewer.opening import Opened
from saccade.viewer.worker import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from saccade.heads import Change
    from saccade.investigations.asked_change import AskedChange, Elsewhere
    from saccade.investigations.replacement import Replacement
    from saccade.lenses.collection import Lenses
    from saccade.lenses.position_grid import Site
    from saccade.lenses.text_run import TextRun

RUN_BYTES = 2**29  # of runs kept: some hundred short prompts, or a few of a thousand tokens
DIGITS = 4  # of an attention weight; a shade has fewer


@final
class ReadingRoom:
    """Everything that needs the model; used by one thread only."""

    def __init__(self, opened: Opened) -> None:
        self.model, self.lenses = opened.model, opened.lenses
        self._problem = opened.problem
        self._runs: Keeping[TextRun] = Keeping(RUN_BYTES, size=lambda run: run.n_bytes)
        self._roles = ""

    @cached_property
    def about(self) -> list[dict[str, Any]]:
        """The lenses and how good they are."""
        return about_lenses(self.lenses)

    def reading(self, asked: q.ReadingQuestion, _: Progress) -> dict[str, Any]:
        """As `saccade read --all --unembedding --json`."""
        from saccade.lenses.reading import read_run

        name, lenses = self._chosen(asked.lens)
        run = self._run(asked.text, asked.changes)
        reading = read_run(lenses, run, position=asked.position, top=asked.top, unembedding=True)
        return {**reading.to_dict(), "lens": name}

    def predictions(self, asked: q.PredictionsQuestion, _: Progress) -> dict[str, Any]:
        """What the model predicts at each position."""
        from saccade.lenses.predictions import predictions

        return predictions(self._run(asked.text, asked.changes), top=asked.top)

    def measure(self, asked: q.MeasureQuestion, progress: Progress) -> dict[str, Any]:
        """One figure of each head."""
        from saccade.investigations import head_measures as measures

        run, at = self._run(asked.text, asked.changes), asked.position
        match asked.measure:
            case "gain":
                found = measures.lens_gain(self._chosen(asked.lens)[1])
            case "fidelity":
                found = measures.lens_fidelity(self._chosen(asked.lens)[1])
            case "says":
                found = measures.says_most(self._chosen(asked.lens)[1], run, position=at)
            case "entropy":
                found = measures.attention_entropy(run, position=at)
            case "mass":
                words, lenses = _word_list(asked.words), self._chosen(asked.lens)[1]
                found = measures.mass_on_words(lenses, run, words, position=at)
            case "contributes":
                target = measures.target_at(
                    run, position=at, word=asked.word, against=asked.against
                )
                found = measures.contributions(run, target, position=at)
            case "effect":
                found = self._effect(asked, run, progress)
        return found.to_dict()

    def head(self, asked: q.HeadQuestion, _: Progress) -> dict[str, Any]:
        """One head through every lens."""
        from saccade.lenses.head_card import head_card

        run = self._run(asked.text, asked.changes)
        card = head_card(
            run,
            self.lenses,
            layer=asked.layer,
            head=asked.head,
            position=asked.position,
            top=asked.top,
        )
        return card.to_dict()

    def attention(self, asked: q.AttentionQuestion, _: Progress) -> dict[str, Any]:
        """Where one head looks from every position."""
        self.model.check_head(asked.layer, asked.head)
        run = self._run(asked.text, asked.changes)
        rows = run.attention_of(asked.layer)[asked.head].float().tolist()
        return {
            "layer": asked.layer,
            "head": asked.head,
            "tokens": run.tokens,
            "weights": [
                [round(weight, DIGITS) for weight in row[: at + 1]] for at, row in enumerate(rows)
            ],
        }

    def roles(self, _: q.NoQuestion, progress: Progress) -> dict[str, Any]:
        """As `saccade heads roles --json`."""
        from saccade.investigations.head_roles import find_roles

        if not self._roles:
            progress("finds roles of heads", 0, 1)
            try:
                found = find_roles(self.model)
            except ModelError:  # its tokenizer splits names, which two of the roles are about
                found = find_roles(self.model, roles=("induction", "previous", "duplicate"))
            self._roles = found.to_json()
        return json.loads(self._roles)

    def positions(self, asked: q.PositionsQuestion, _: Progress) -> dict[str, Any]:
        """What each layer says at each position."""
        from saccade.lenses.position_grid import Span, position_grid

        run, span = self._run(asked.text, asked.changes), Span(asked.first, asked.count)
        return position_grid(run, self._site(asked.head, asked.lens), span, top=asked.top)

    def ranks(self, asked: q.RanksQuestion, _: Progress) -> dict[str, Any]:
        """Where words stand at each layer and position."""
        from saccade.investigations.head_measures import word_asked
        from saccade.lenses.position_grid import Span, word_ranks

        run, span = self._run(asked.text, asked.changes), Span(asked.first, asked.count)
        words = list(dict.fromkeys(word_asked(run, word) for word in asked.words))
        return word_ranks(run, self._site(asked.head, asked.lens), span, words)

    def compare(self, asked: q.CompareQuestion, _: Progress) -> dict[str, Any]:
        """Two prompts side by side."""
        from saccade.investigations.compare_prompts import compare_prompts

        name, lenses = self._chosen(asked.lens)
        runs = (self._run(asked.text, asked.changes), self._run(asked.other, asked.changes))
        found = compare_prompts(lenses, runs, word=asked.word, against=asked.against, top=asked.top)
        return {**found, "lens": name}

    def act(self, asked: q.ActQuestion, _: Progress) -> dict[str, Any]:
        """The model before and after changes."""
        from saccade.investigations.acting import Acted, what_happened

        name, lenses = self._chosen(asked.lens) if self.lenses else (None, None)
        before, after = self._run(asked.text, []), self._run(asked.text, asked.changes, asked.lens)
        acted = Acted(before, after)
        found = what_happened(lenses, acted, word=asked.word, top=asked.top, say=asked.say)
        return {**found, "lens": name}

    def edit(self, asked: q.ActQuestion, _: Progress) -> bytes:
        """The same as a folder that `saccade edit --load` takes, packed as a zip file."""
        from saccade.investigations.edit_file import edit_of
        from saccade.viewer.packing import packed_edit

        changes = self._run(asked.text, asked.changes, asked.lens).changes
        return packed_edit(edit_of(self.model, changes, prompt=asked.text))

    def _chosen(self, name: str | None) -> tuple[str, Lenses]:
        if not self.lenses:
            raise self._problem or LensError(
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
        from saccade.lenses.position_grid import UNEMBEDDING, Site

        if head is None and name in (None, UNEMBEDDING):
            return Site(name=UNEMBEDDING, lenses=None)
        name, lenses = self._chosen(name)
        return Site(name=name, lenses=lenses, head=head)

    def _run(self, text: str, changes: Sequence[q.AnyChange], lens: str | None = None) -> TextRun:
        said = [each.model_dump(mode="json") for each in changes]
        through = lens if any(each.get("form") == "lens" for each in said) else None
        key = json.dumps([text, said, through])
        return self._runs.get(key, lambda: self._new_run(text, changes, lens))

    def _new_run(self, text: str, changes: Sequence[q.AnyChange], lens: str | None) -> TextRun:
        from saccade.lenses.text_run import TextRun

        made = self._made(text, changes, lens) if changes else []
        return TextRun(self.model, text, changes=made, limit=q.MOST_TOKENS)

    def _made(self, text: str, changes: Sequence[q.AnyChange], lens: str | None) -> list[Change]:
        from saccade.investigations.asked_change import make_change

        asked = _asked(changes)
        lenses = self._chosen(lens)[1] if any(each.form == "lens" for each in asked) else None
        return [
            make_change(self.model, each, prompt=text, elsewhere=self._elsewhere, lenses=lenses)
            for each in asked
        ]

    @cached_property
    def _elsewhere(self) -> Elsewhere:
        from saccade.investigations.asked_change import Elsewhere

        return Elsewhere(self.model, lambda: self._reference)

    @cached_property
    def _reference(self) -> Tensor:
        from saccade.investigations.replacement import reference_text

        return reference_text(self.model)

    @cached_property
    def _mean(self) -> Replacement:
        from saccade.investigations.replacement import Replacement

        return Replacement.mean(self.model, self._reference)

    def _effect(self, asked: q.MeasureQuestion, run: TextRun, progress: Progress) -> Any:
        from saccade.investigations.head_measures import ablation_effects, target_at
        from saccade.investigations.replacement import Replacement

        at = asked.position
        target = target_at(run, position=at, word=asked.word, against=asked.against)
        by = Replacement("zero") if asked.ablate == "zero" else self._mean
        return ablation_effects(run, target, position=at, replacement=by, progress=progress)


def _asked(changes: Sequence[q.AnyChange]) -> list[AskedChange]:
    from saccade.investigations.asked_change import AskedChange

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
    from saccade.investigations.bias_suites import word_lists

    if asked is None:
        raise UsageError(
            "mass on which words?", hint="give the name of a list, or words with commas"
        )
    if asked in word_lists():
        return list(word_lists()[asked])
    return [word for each in asked.split(",") if (word := each.strip())]
