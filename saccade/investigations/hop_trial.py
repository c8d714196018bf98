"""Two-hop questions, ready for memories of their bridges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.heads import capture
from saccade.investigations.bias_words import behind_a_space
from saccade.investigations.edit_search import POINTED
from saccade.investigations.injection import Form, Injection, Memory, Place
from saccade.investigations.memory import lens_lifts, memory_words
from saccade.investigations.multi_hop import TwoHop
from saccade.investigations.prompt_batches import encode_prompts
from saccade.investigations.prompt_ends import PromptEnds

if TYPE_CHECKING:
    from saccade.heads import LanguageModel
    from saccade.lenses.collection import Lenses

Where: TypeAlias = Literal["end", "phrase"]


class Setting(NamedTuple):
    """What is injected, where, and how strongly."""

    form: Form
    """The bridge's word through the unembedding or a lens, or a text that leads to it."""
    where: Where
    """At the question's last token, or at the last token of what stands for the bridge."""
    layer: int | None
    """Into the residual stream after it; without one, into the heads that the lenses point to."""
    strength: float
    """Times what is there; a text's at strength 1 takes its place."""


class HopTrial:
    """Questions run up to the tokens that are changed, with the memories of their bridges.

    Args:
        layers: that memories may be injected into.
        lenses: for settings without a layer, and for the form "lens".
    """

    def __init__(
        self,
        model: LanguageModel,
        questions: Sequence[TwoHop],
        *,
        layers: Sequence[int],
        lenses: Lenses | None = None,
    ) -> None:
        if not questions:
            raise UsageError("there are no questions", hint="the model may know none of the hops")
        self.model, self.questions, self._lenses = model, list(questions), lenses
        self.backs = [q.back(model) for q in questions]
        prompts = encode_prompts(model, [q.question for q in questions])
        # A change at the last token needs that token run again, one at the phrase all behind it.
        self._ends: dict[Where, PromptEnds] = {
            "end": PromptEnds(model, prompts),
            "phrase": PromptEnds(model, prompts, tail=-min(self.backs)),
        }
        self._answers = torch.tensor([behind_a_space(model, q.answer)[0] for q in questions])
        self.before = self._chances(self._ends["end"].logits())
        wanted = [at.index for at in model.layers] if lenses is not None else list(layers)
        self._held = [capture(model, ids[None], layers=wanted, residual=True) for ids in prompts]
        self._made = cache(self._make_memory)
        self._lifts = cache(self._lift)
        self._pointed = cache(self._point)

    def injected(
        self, setting: Setting, *, memory_of: Sequence[int] | None = None
    ) -> Float[Tensor, " question"]:
        """The right answers' probabilities with every question's memory injected.

        Args:
            memory_of: for each question, the number of the one whose memory it gets instead.
        """
        rows = range(len(self.questions))
        changes = [
            replace(change, rows=[row])
            for row, other in zip(rows, memory_of or rows, strict=True)
            for change in self.changes(setting, row, memory_of=other)
        ]
        return self._chances(self._ends[setting.where].logits(changes))

    def changes(
        self, setting: Setting, row: int, *, memory_of: int | None = None
    ) -> list[Injection]:
        """What one question gets."""
        number = row if memory_of is None else memory_of
        q = self.questions[number]
        memory = self._made(setting.form, q.memory if setting.form == "text" else q.bridge)
        position = -1 if setting.where == "end" else self.backs[row]
        places: Sequence[Place] = [(setting.layer, None)] if setting.layer is not None else ()
        return [
            memory.injection(
                self._held[row], place, strength=setting.strength, positions=[position]
            )
            for place in places or self._pointed(number, row, position)
        ]

    def _make_memory(self, form: Form, text: str) -> Memory:
        return Memory(self.model, text, form=form, lenses=self._lenses)

    def _point(self, number: int, row: int, position: int) -> list[Place]:
        assert self._lenses is not None, "a setting without a layer comes with lenses"
        lifts = self._lifts(row, position)
        said = [lifts[word] for word in memory_words(self.model, self.questions[number].bridge)]
        lift = torch.stack(said).mean(0)
        best = lift.topk(min(POINTED, len(lift))).indices.tolist()
        return [self._lenses.sites[site] for site in best]

    def _lift(self, row: int, position: int) -> dict[int, Float[Tensor, " site"]]:
        """What the lenses say of all bridges at once, which costs no more than one of them."""
        assert self._lenses is not None, "a setting without a layer comes with lenses"
        words = sorted({w for q in self.questions for w in memory_words(self.model, q.bridge)})
        question = self.questions[row].question
        lifts = lens_lifts(self._lenses, question, words, position=position)
        return dict(zip(words, lifts.T, strict=True))

    def _chances(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1).gather(1, self._answers.to(logits.device)[:, None])[:, 0].cpu()
