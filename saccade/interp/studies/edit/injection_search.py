"""Search where and how strongly to inject a memory, and measure the cost on unrelated text."""

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


# The cost of an edit: how much worse the model predicts text that is unrelated to it.

MOST_COST = 0.01  # of the perplexity of unrelated text
REACH = 16  # tokens before the cut that are run again, so that most edits share one prefix cache


class UnrelatedText:
    """Texts, each cut in two: the first part serves as a prompt, the second is its continuation.

    An edit is made at the end of the first part as it would be at the end of its own prompt, and
    the loss is measured on the second part: all the harm an edit can do to the text after it.
    """

    def __init__(self, model: LanguageModel, ids: Int[Tensor, "batch pos"]) -> None:
        self.model, self.ids = model, ids
        self._begun = cache(self._begin)
        self._plain = cache(self._losses)

    def cost(self, changes: Sequence[Change]) -> float:
        """The relative increase of the perplexity under changes.

        Args:
            changes: their positions count from the end of a prompt (negative), or are all.
        """
        n_pos = self.ids.shape[1]
        reach = -min((min(c.positions) for c in changes if c.positions), default=-1)
        cut = max(n_pos // 2, reach + 1)
        if cut >= n_pos - 1:
            raise UsageError(
                f"the edit reaches {reach} tokens back, the unrelated texts have {n_pos}",
                hint="choose positions nearer to the end of the prompt",
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
        """Of the second parts; the first are cached but for ``reach`` tokens (None: not cached)."""
        if reach is None:
            with intervene(self.model, changes) if changes else nullcontext():
                final = capture(self.model, self.ids, layers=[]).final[:, cut - 1 : -1]
        else:
            final = self._begun(cut, reach).states(changes)[:, reach - 1 : -1]
        losses = []
        for states, tokens in zip(
            final, self.ids[:, cut:], strict=True
        ):  # one row's logits at once
            log_p = self.model.unembedding.logits(states).float().log_softmax(-1)
            losses.append(-log_p.gather(-1, tokens[:, None].to(log_p.device)).mean())
        return torch.stack(losses)

    def _begin(self, cut: int, reach: int) -> PromptEnds:
        return PromptEnds(self.model, list(self.ids), tail=self.ids.shape[1] - cut + reach)


def _behind(change: Change, cut: int) -> Change:
    """The change with its positions counted from the end of the first part."""
    if change.positions is None:
        return change
    return replace(change, positions=tuple(cut + place for place in change.positions))


# Tokens are added to the activation, from a small fraction of its norm to a multiple of it; a text
# replaces a share of the activation.
STRENGTHS: dict[Form, tuple[float, ...]] = {
    "unembedding": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    "lens": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    "text": (0.25, 0.5, 0.75, 1.0),
}
MOST_STRENGTH = 100.0  # beyond it nothing of the activation is left, and numbers overflow
POINTED = 8  # heads to try, those whose lenses most predict the memory
ROWS = 16  # trials per batch


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The places, strengths and positions that a search for an edit tries."""

    form: Form = "unembedding"
    """How the memory becomes a vector: through the unembedding, through the inverse of a lens, or
    read as a text."""
    places: Sequence[Place] | None = None
    """Default: the heads whose lenses most predict the memory."""
    strengths: Sequence[float] | None = None
    """Relative to the norm of the activation there; default: those of the form."""
    positions: Sequence[int] | None = (-1,)
    """Of the prompt, counted from its end; None for all."""

    def __post_init__(self) -> None:
        for strength in self.strengths or ():
            if not 0 < strength <= MOST_STRENGTH:
                raise UsageError(
                    f"a strength must be a number above 0 and at most {MOST_STRENGTH:g}, "
                    f"got {strength:g}",
                    hint="strength 1 has the norm of the activation that is there",
                )


@dataclass(frozen=True, kw_only=True)
class FoundEdit:
    """An edit, its effect and its cost."""

    edit: Edit
    token: int
    """The token whose probability the edit should raise."""
    before: float
    after: float
    cost: float
    """The relative increase of the perplexity of unrelated text after the edit."""
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

    Every place is tried with every strength. The best trial whose cost is at most 1 % is taken; if
    there is none, the cheapest.

    Args:
        token: the token to raise.
        lenses: to choose heads; needed without places, and for the form "lens".
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
    """The heads whose lenses most predict the memory.

    A text is also tried in the residual stream after every third layer: what a model has read is
    mostly in the stream of its middle layers, which no lens of a head reads.
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
    """The model's next-token probabilities after a prompt, under each change by itself."""
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
    too_strong: dict[str, float] = {}  # by place, the least strength that costs too much
    for trial in after.argsort(descending=True).tolist():
        place, strength = place_of(trials[trial]), trials[trial].strength
        if strength > too_strong.get(place, float("inf")):
            continue  # a larger strength costs more
        costs[trial] = unrelated.cost([trials[trial]])
        if costs[trial] <= MOST_COST:
            return trial, costs[trial]
        too_strong[place] = strength
    trial = min(costs, key=costs.__getitem__)
    return trial, costs[trial]
