"""Find where and how strongly a memory has to be injected, and what that costs elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Change, intervene
from saccade.interp.studies.edit.edit_file import Edit, edit_of, place_of
from saccade.interp.studies.edit.injection import Form, Injection, Memory, Place, point_to_heads
from saccade.interp.studies.prompts import PromptEnds

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses


# What an edit costs: how much worse a model predicts text that has nothing to do with it.

MOST_COST = 0.01  # of the perplexity of unrelated text
REACH = 16  # tokens before the cut that are run again, so that most edits share one beginning


class UnrelatedText:
    """Texts, each cut in two: the first part stands for a prompt, the second is what follows it.

    An edit is made at the end of the first part as it would be at the end of its own prompt, and
    the second part is what is judged: all of the harm an edit can do to what is said behind it.
    """

    def __init__(self, model: LanguageModel, ids: Int[Tensor, "batch pos"]) -> None:
        self.model, self.ids = model, ids
        self._begun = cache(self._begin)
        self._plain = cache(self._losses)

    def cost(self, changes: Sequence[Change]) -> float:
        """By which share changes raise the perplexity.

        Args:
            changes: their positions count from the end of a prompt (below 0), or are all.
        """
        n_pos = self.ids.shape[1]
        reach = -min((min(c.positions) for c in changes if c.positions), default=-1)
        cut = max(n_pos // 2, reach + 1)
        if cut >= n_pos - 1:
            raise UsageError(
                f"the edit reaches {reach} tokens back, the unrelated texts have {n_pos}",
                hint="change something nearer to the end of the prompt",
            )
        if any(each.positions is None for each in changes):
            reach = None
        else:
            reach = min(max(reach, REACH), cut - 1)
        edited = self._losses(cut, reach, tuple(_behind(each, cut) for each in changes))
        return float((edited - self._plain(cut, reach)).mean().exp()) - 1

    @torch.no_grad()
    def _losses(
        self, cut: int, reach: int | None, changes: tuple[Change, ...] = ()
    ) -> Float[Tensor, " batch"]:
        """Of the second parts; the first are run once, but for ``reach`` tokens (all: None)."""
        if reach is None:
            with intervene(self.model, changes) if changes else nullcontext():
                final = capture(self.model, self.ids, layers=[]).final[:, cut - 1 : -1]
        else:
            final = self._begun(cut, reach).states(changes)[:, reach - 1 : -1]
        losses = []
        for states, tokens in zip(
            final, self.ids[:, cut:], strict=True
        ):  # a row's logits at a time
            said = self.model.unembedding.logits(states).float().log_softmax(-1)
            losses.append(-said.gather(-1, tokens[:, None].to(said.device)).mean())
        return torch.stack(losses)

    def _begin(self, cut: int, reach: int) -> PromptEnds:
        return PromptEnds(self.model, list(self.ids), tail=self.ids.shape[1] - cut + reach)


def _behind(change: Change, cut: int) -> Change:
    """The change with its positions counted from the end of the first part."""
    if change.positions is None:
        return change
    return replace(change, positions=tuple(cut + place for place in change.positions))


# Tokens are added to what a place holds, from hardly anything to more than all else there; a text
# takes its place, by a share.
STRENGTHS: dict[Form, tuple[float, ...]] = {
    "unembedding": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    "lens": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    "text": (0.25, 0.5, 0.75, 1.0),
}
MOST_STRENGTH = 100.0  # beyond it nothing of what was there is left, and numbers overflow
POINTED = 8  # heads that the lens points to and that are tried
ROWS = 16  # trials run at once


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """What a search for an edit tries."""

    form: Form = "unembedding"
    """How the memory becomes a vector: through the unembedding, through a lens's inverse, or read
    as a text."""
    places: Sequence[Place] | None = None
    """Without them, the heads whose lenses point to the memory."""
    strengths: Sequence[float] | None = None
    """Times what the place holds itself; without them, those that suit the form."""
    positions: Sequence[int] | None = (-1,)
    """Of the prompt, counted from its end; None for all."""

    def __post_init__(self) -> None:
        for strength in self.strengths or ():
            if not 0 < strength <= MOST_STRENGTH:
                raise UsageError(
                    f"a strength must be a number above 0 and at most {MOST_STRENGTH:g}, "
                    f"got {strength:g}",
                    hint="1 is as much as what is there itself",
                )


@dataclass(frozen=True, kw_only=True)
class FoundEdit:
    """An edit, and what it does."""

    edit: Edit
    token: int
    """The token whose probability it was to raise."""
    before: float
    after: float
    cost: float
    """By which share the perplexity of unrelated text rises behind it."""
    n_tried: int


@torch.no_grad()
def search_edit(
    model: LanguageModel,
    prompt: str,
    memory: str,
    *,
    token: int,
    unrelated: UnrelatedText,
    space: SearchSpace | None = None,
    lenses: Lenses | None = None,
) -> FoundEdit:
    """The edit that raises a token most after a prompt, of those that cost unrelated text little.

    Every place is tried with every strength. Of the best trials the first whose cost is at most a
    hundredth is taken; of none, the cheapest.

    Args:
        token: the token to raise.
        lenses: that point to the heads; needed without places, and for the form "lens".
    """
    space = space or SearchSpace()
    if lenses is None and (space.places is None or space.form == "lens"):
        raise UsageError("the search needs lenses", hint="give them, or name a place")
    injected = Memory(model, memory, form=space.form, lenses=lenses)
    places = space.places
    if places is None:
        assert lenses is not None, "checked above"
        places = pointed_places(lenses, prompt, injected, space.positions)
    ids = model.encode(prompt)
    activation = capture(model, ids, layers=sorted({layer for layer, _ in places}), residual=True)
    trials = [
        injected.injection(activation, place, strength=strength, positions=space.positions)
        for place in places
        for strength in space.strengths or STRENGTHS[space.form]
    ]
    before = float(chances(model, ids, [None])[0, token])
    after = chances(model, ids, trials)[:, token]
    best, cost = _cheap_enough(trials, after, unrelated)
    about = f"the memory {memory!r}, {FORMS[space.form]}"
    edit = edit_of(model, [trials[best]], prompt=prompt, about=about)
    rise = float(after[best])
    return FoundEdit(
        edit=edit, token=token, before=before, after=rise, cost=cost, n_tried=len(trials)
    )


FORMS: dict[Form, str] = {
    "unembedding": "through the unembedding",
    "lens": "through the inverse of the lens",
    "text": "read as a text",
}


def pointed_places(
    lenses: Lenses, prompt: str, memory: Memory, positions: Sequence[int] | None
) -> list[Place]:
    """The heads whose lenses say most of the memory.

    A text is tried in the stream after every third layer too: what a model has read is mostly in
    the stream of its middle layers, where no lens of a head looks.
    """
    position = -1 if positions is None else positions[-1]
    pointed = point_to_heads(lenses, prompt, memory.tokens, position=position)[:POINTED]
    places: list[Place] = [(each.layer, each.head) for each in pointed]
    if memory.form == "text":
        places += [(at.index, None) for at in lenses.model.layers[::3]]
    return places


@torch.no_grad()
def chances(
    model: LanguageModel, ids: Int[Tensor, "1 pos"], trials: Sequence[Injection | None]
) -> Float[Tensor, "trial d_vocab"]:
    """The model's next-word probabilities behind a prompt, under each of some changes alone."""
    found = []
    for start in range(0, len(trials), ROWS):
        rows = trials[start : start + ROWS]
        changes = [replace(each, rows=[row]) for row, each in enumerate(rows) if each is not None]
        copies = ids.expand(len(rows), -1)
        if changes:
            with intervene(model, changes):
                final = capture(model, copies, layers=[]).final[:, -1]
        else:
            final = capture(model, copies, layers=[]).final[:, -1]
        found.append(model.unembedding.logits(final).float().softmax(-1))
    return torch.cat(found)


def _cheap_enough(
    trials: Sequence[Injection], after: Float[Tensor, " trial"], unrelated: UnrelatedText
) -> tuple[int, float]:
    costs: dict[int, float] = {}
    dear: dict[str, float] = {}  # by place, the least strength that costs too much
    for trial in after.argsort(descending=True).tolist():
        place, strength = place_of(trials[trial]), trials[trial].strength
        if strength > dear.get(place, float("inf")):
            continue  # more of it costs more
        costs[trial] = unrelated.cost([trials[trial]])
        if costs[trial] <= MOST_COST:
            return trial, costs[trial]
        dear[place] = strength
    trial = min(costs, key=costs.__getitem__)
    return trial, costs[trial]
