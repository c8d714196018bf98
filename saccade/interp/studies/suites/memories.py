"""Prompts that describe someone, the name that is meant, and how likely their answers are.

The items are those of Sakarvadia et al., 2023, "Memory Injections"
(https://arxiv.org/abs/2309.05605): an explicit sentence with the name, an obscure one with a
description instead, and the answer that follows either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import TaskError, UsageError
from saccade.interp.effects.target import behind_a_space
from saccade.interp.heads.capture import capture, run_base
from saccade.interp.heads.intervene import Change, intervene
from saccade.interp.heads.onednn import fast_products
from saccade.interp.heads.prompt_batches import encode_prompts, prompt_batches
from saccade.interp.studies.edit.injection import Span, memory_tokens, span_of
from saccade.interp.studies.prompts import PromptEnds
from saccade.interp.studies.suites.suite import Item

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

FOLDS = 5
KNOWN = 5  # the answer is among so many likeliest tokens of the explicit prompt


class Prompt(NamedTuple):
    """An item as tokens."""

    obscure: Int[Tensor, " pos"]
    answer: int
    tokens: tuple[int, ...]
    """Of the name: the memory."""
    here: Span
    """The description, in the obscure prompt."""
    there: Span
    """The name, in the explicit prompt."""


class Trial:
    """The items of a data set, with the log-probability of each answer."""

    def __init__(self, model: LanguageModel, items: Sequence[Item], *, seed: int) -> None:
        self.model, self.seed = model, seed
        self.prompts = [_prompt(model, number, item) for number, item in enumerate(items, 1)]
        self._encoded = [each.obscure for each in self.prompts]
        explicit = encode_prompts(model, [str(item["explicit_sentence"]).strip() for item in items])
        self.named, self.rank = self._answers(explicit, None)
        self.before, _ = self._answers(self._encoded, None)
        names = [str(item["explicit_entity"]).strip().lower() for item in items]
        self.fold = folds_of(names, seed=seed)
        self.other = _others(names, seed=seed)

    def groups(self) -> dict[str, Bool[Tensor, " item"]]:
        """Which items are reported together."""
        return {
            "answer likeliest after the name": self.rank < 1,
            f"answer among the {KNOWN} likeliest after the name": self.rank < KNOWN,
            "all items": self.rank >= 0,
        }

    @torch.no_grad()
    def after(
        self, change: Callable[[int], Change], *, at_end: bool = False
    ) -> Float[Tensor, " item"]:
        """The log-probability of each answer when its prompt is changed.

        Args:
            at_end: the last token alone is changed, so that nothing before it is run again.
        """
        if not at_end:
            return self._answers(self._encoded, change)[0]
        changes = [replace(change(i), rows=[i]) for i in range(len(self.prompts))]
        with fast_products():
            log_p = self._ends.logits(changes).log_softmax(-1)
        return log_p.gather(1, self._wanted[:, None].to(log_p.device))[:, 0].double().cpu()

    @cached_property
    def _ends(self) -> PromptEnds:
        return PromptEnds(self.model, self._encoded)

    @cached_property
    def _wanted(self) -> Int[Tensor, " item"]:
        return torch.tensor([each.answer for each in self.prompts])

    @torch.no_grad()
    def _answers(
        self, encoded: Sequence[Tensor], change: Callable[[int], Change] | None
    ) -> tuple[Float[Tensor, " item"], Int[Tensor, " item"]]:
        """Log-probability and rank, from 0, of each answer."""
        log_p = torch.zeros(len(encoded), dtype=torch.double)
        rank = torch.zeros(len(encoded), dtype=torch.long)
        for batch in prompt_batches(encoded):
            rows = batch.rows.tolist()
            changes = [replace(change(i), rows=[at]) for at, i in enumerate(rows) if change]
            changing = (
                intervene(self.model, changes, may_do_nothing=True) if changes else nullcontext()
            )
            with changing, fast_products():
                final = run_base(self.model.hf, batch.ids, mask=batch.mask)
                last = final[torch.arange(len(final)), batch.last]
                logits = self.model.unembedding.logits(last).float().cpu()
            own = logits.gather(1, self._wanted[batch.rows][:, None])
            log_p[batch.rows] = (own[:, 0] - logits.logsumexp(-1)).double()
            rank[batch.rows] = (logits > own).sum(1)
        return log_p, rank


def _prompt(model: LanguageModel, number: int, item: Item) -> Prompt:
    try:
        spans = [_span(model, item, which) for which in ("obscure", "explicit")]
        return Prompt(
            obscure=model.encode(str(item["obscure_sentence"]).strip())[0],
            answer=behind_a_space(model, str(item["answer"]).strip())[0],
            tokens=tuple(memory_tokens(model, str(item["explicit_entity"]))),
            here=spans[0],
            there=spans[1],
        )
    except UsageError as error:
        raise TaskError(f"item {number}: {error}", hint=error.hint) from error


def _span(model: LanguageModel, item: Item, which: str) -> Span:
    text = str(item[f"{which}_sentence"]).strip()
    streams = capture(model, model.encode(text), residual=True).residual
    found = span_of(model, text, str(item[f"{which}_entity"]))
    # A few sentences do not have their entity word for word: there the last token stands for it.
    return Span({layer: each[0] for layer, each in streams.items()}, found or (-1,))


def folds_of(names: Sequence[str], *, seed: int) -> Int[Tensor, " item"]:
    """The fold of each item; items of one name are in one fold."""
    different = sorted(set(names))
    random.Random(seed).shuffle(different)
    fold = {name: at % FOLDS for at, name in enumerate(different)}
    return torch.tensor([fold[name] for name in names])


def _others(names: Sequence[str], *, seed: int) -> list[int]:
    """For each item one of another name, in a random order that gives every item once or so."""
    order = list(range(len(names)))
    random.Random(seed + 1).shuffle(order)
    place = {item: at for at, item in enumerate(order)}
    n = len(order)
    return [
        next(
            (
                order[(place[i] + step) % n]
                for step in range(1, n)
                if names[order[(place[i] + step) % n]] != names[i]
            ),
            i,
        )
        for i in range(n)
    ]
