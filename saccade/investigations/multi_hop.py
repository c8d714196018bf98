"""Questions of two hops, and what a memory of the first hop's answer does for the second's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.heads import capture
from saccade.investigations.bias_words import behind_a_space
from saccade.investigations.prompt_batches import encode_prompts, prompt_batches
from saccade.investigations.text_pieces import last_token_of

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

LOW = 0.1  # the share below which a right answer wants help


class TwoHop(NamedTuple):
    """A question whose answer needs another answer first."""

    question: str
    """The capital of the country where the Eiffel Tower is located is the city of"""
    bridge: str
    """France"""
    answer: str
    """Paris"""
    first: str
    """The first hop alone, which the bridge answers."""
    second: str
    """The second hop alone, about the bridge."""
    phrase: str
    """What stands for the bridge in the question: the country where the Eiffel Tower is located"""
    memory: str
    """A text that leads to the bridge and to nothing else of the question: ... I think of France"""

    def back(self, model: LanguageModel) -> int:
        """The position of the last token of the phrase, from the end of the question: below 0."""
        return last_token_of(model, self.question, self.phrase)


@cache
def two_hops() -> tuple[TwoHop, ...]:
    """All questions: every subject with every relation of the country it belongs to."""
    told: dict[str, Any] = json.loads(
        files("saccade.investigations").joinpath("data/two_hops.json").read_text(encoding="utf-8")
    )
    return tuple(
        TwoHop(
            question=relation["asks"].format(phrase),
            phrase=phrase,
            memory=told["memory"].format(bridge),
            bridge=bridge,
            answer=relation["facts"][bridge],
            first=_begun(kind["asks"].format(subject)),
            second=relation["asks"].format(_with_article(bridge)),
        )
        for kind in told["subjects"]
        for subject, bridge in kind["facts"].items()
        for phrase in [kind["names"].format(subject)]
        for relation in told["relations"]
    )


def known_two_hops(model: LanguageModel, questions: Sequence[TwoHop]) -> list[TwoHop]:
    """Those of which the model knows both single hops: the right word is the likeliest next."""
    prompts = sorted({q.first for q in questions} | {q.second for q in questions})
    best = dict(zip(prompts, likeliest(model, prompts), strict=True))
    return [
        q
        for q in questions
        if best[q.first] == behind_a_space(model, q.bridge)[0]
        and best[q.second] == behind_a_space(model, q.answer)[0]
        # Where the answer is the bridge (Mexico City), nothing is left to be found out.
        and behind_a_space(model, q.answer)[0] != behind_a_space(model, q.bridge)[0]
    ]


def likeliest(model: LanguageModel, prompts: Sequence[str]) -> list[int]:
    """The likeliest next token of each prompt."""
    return [int(each.argmax()) for each in next_words(model, prompts)]


def chances_of(model: LanguageModel, questions: Sequence[TwoHop]) -> list[float]:
    """How likely the right answer of each question is."""
    said = next_words(model, [q.question for q in questions])
    return [
        float(each.softmax(-1)[behind_a_space(model, q.answer)[0]])
        for q, each in zip(questions, said, strict=True)
    ]


@torch.no_grad()
def next_words(model: LanguageModel, prompts: Sequence[str]) -> Iterator[Float[Tensor, " d_vocab"]]:
    """The logits of the word after each prompt."""
    states = torch.zeros(len(prompts), model.d_model)
    for batch in prompt_batches(encode_prompts(model, prompts)):
        final = capture(model, batch.ids, mask=batch.mask, layers=[]).final
        states[batch.rows] = final[torch.arange(len(batch.rows)), batch.last].float().cpu()
    for state in states:  # all at once would be a large matrix
        yield model.unembedding.logits(state[None].to(model.device))[0].float()


def halves(questions: Sequence[TwoHop]) -> tuple[list[TwoHop], list[TwoHop]]:
    """One half to choose with and one to judge on; no bridge is in both."""
    bridges = sorted({q.bridge for q in questions})
    chosen = {*bridges[::2]}
    return [q for q in questions if q.bridge in chosen], [
        q for q in questions if q.bridge not in chosen
    ]


@dataclass(frozen=True)
class HopFigures:
    """The right answer's probability over questions, before and after an injection."""

    before: Float[Tensor, " question"]
    after: Float[Tensor, " question"]

    def to_dict(self) -> dict[str, int | float]:
        """What is reported; ratios are over the questions whose answer was below 10 %."""
        low = self.before < LOW
        ratio = self.after[low] / self.before[low]
        return {
            "questions": len(self.before),
            "below_a_tenth": int(low.sum()),
            "mean_before": float(self.before[low].mean()),
            "mean_after": float(self.after[low].mean()),
            "mean_ratio": float(ratio.mean()),
            "geometric_mean_ratio": float(ratio.log().mean().exp()),
            "median_ratio": float(ratio.median()),
            "share_raised": float((ratio > 1).float().mean()),
        }


def _begun(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _with_article(country: str) -> str:
    return f"the {country}" if country == "Netherlands" else country
