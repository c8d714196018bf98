"""Two-hop questions: choose how to inject memories on one half, evaluate on the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.effects.target import behind_a_space
from saccade.interp.heads.capture import capture
from saccade.interp.heads.prompt_batches import encode_prompts, prompt_batches
from saccade.interp.studies.edit.injection import (
    Form,
    Injection,
    Memory,
    Place,
    lens_lifts,
    memory_tokens,
)
from saccade.interp.studies.edit.injection_search import MOST_COST, POINTED, UnrelatedText
from saccade.interp.studies.prompts import PromptEnds, last_token_of

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses


# Questions of two hops, and how a memory of the first hop's answer changes the second's.

LOW = 0.1  # only questions whose right answer is less likely than this are evaluated


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
    """What names the bridge in the question: the country where the Eiffel Tower is located"""
    memory: str
    """A text that leads to the bridge and to nothing else of the question: ... I think of France"""

    def back(self, model: LanguageModel) -> int:
        """The position of the last token of the phrase, from the end of the question: negative."""
        return last_token_of(model, self.question, self.phrase)


@cache
def two_hops() -> tuple[TwoHop, ...]:
    """All questions: every subject with every relation of the country it belongs to."""
    data: dict[str, Any] = json.loads(
        files("saccade.interp.studies").joinpath("data/two_hops.json").read_text(encoding="utf-8")
    )
    return tuple(
        TwoHop(
            question=relation["asks"].format(phrase),
            phrase=phrase,
            memory=data["memory"].format(bridge),
            bridge=bridge,
            answer=relation["facts"][bridge],
            first=_begun(kind["asks"].format(subject)),
            second=relation["asks"].format(_with_article(bridge)),
        )
        for kind in data["subjects"]
        for subject, bridge in kind["facts"].items()
        for phrase in [kind["names"].format(subject)]
        for relation in data["relations"]
    )


def known_two_hops(model: LanguageModel, questions: Sequence[TwoHop]) -> list[TwoHop]:
    """The questions whose single hops the model knows: the right token is the likeliest next."""
    prompts = sorted({q.first for q in questions} | {q.second for q in questions})
    best = dict(zip(prompts, likeliest(model, prompts), strict=True))
    return [
        q
        for q in questions
        if best[q.first] == behind_a_space(model, q.bridge)[0]
        and best[q.second] == behind_a_space(model, q.answer)[0]
        # Where the answer begins as the bridge (Mexico City), there is no second hop to make.
        and behind_a_space(model, q.answer)[0] != behind_a_space(model, q.bridge)[0]
    ]


def likeliest(model: LanguageModel, prompts: Sequence[str]) -> list[int]:
    """The likeliest next token of each prompt."""
    return [int(each.argmax()) for each in next_tokens(model, prompts)]


def chances_of(model: LanguageModel, questions: Sequence[TwoHop]) -> list[float]:
    """The probability of the right answer of each question."""
    logits = next_tokens(model, [q.question for q in questions])
    return [
        float(each.softmax(-1)[behind_a_space(model, q.answer)[0]])
        for q, each in zip(questions, logits, strict=True)
    ]


@torch.no_grad()
def next_tokens(
    model: LanguageModel, prompts: Sequence[str]
) -> Iterator[Float[Tensor, " d_vocab"]]:
    """The logits of the token after each prompt."""
    states = torch.zeros(len(prompts), model.d_model)
    for batch in prompt_batches(encode_prompts(model, prompts)):
        final = capture(model, batch.ids, mask=batch.mask, layers=[]).final
        states[batch.rows] = final[torch.arange(len(batch.rows)), batch.last].float().cpu()
    for state in states:  # all at once would be a large matrix
        yield model.unembedding.logits(state[None].to(model.device))[0].float()


def halves(questions: Sequence[TwoHop]) -> tuple[list[TwoHop], list[TwoHop]]:
    """One half to choose settings on and one to evaluate on; no bridge is in both."""
    bridges = sorted({q.bridge for q in questions})
    chosen = {*bridges[::2]}
    return [q for q in questions if q.bridge in chosen], [
        q for q in questions if q.bridge not in chosen
    ]


@dataclass(frozen=True)
class HopMetrics:
    """The right answer's probability over questions, before and after an injection."""

    before: Float[Tensor, " question"]
    after: Float[Tensor, " question"]

    def to_dict(self) -> dict[str, int | float]:
        """The metrics; ratios are over the questions whose answer was below 10 %."""
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


# Two-hop questions, ready for memories of their bridges.

Where: TypeAlias = Literal["end", "phrase"]


class Setting(NamedTuple):
    """What is injected, where, and how strongly."""

    form: Form
    """The bridge's token through the unembedding or a lens, or a text that leads to it."""
    where: Where
    """At the question's last token, or at the last token of the phrase."""
    layer: int | None
    """Into the residual stream after it; None: into the heads whose lenses most predict the
    bridge."""
    strength: float
    """Relative to the norm of the activation there; a text of strength 1 replaces it."""


class HopTrial:
    """Questions, cached up to the tokens that are changed, with the memories of their bridges.

    Args:
        layers: where memories may be injected.
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
            raise UsageError(
                "there are no questions", hint="the model may know none of the single hops"
            )
        self.model, self.questions, self._lenses = model, list(questions), lenses
        self.backs = [q.back(model) for q in questions]
        prompts = encode_prompts(model, [q.question for q in questions])
        # A change at the last token reruns that token, one at the phrase reruns all from there on.
        self._ends: dict[Where, PromptEnds] = {
            "end": PromptEnds(model, prompts),
            "phrase": PromptEnds(model, prompts, tail=-min(self.backs)),
        }
        self._answers = torch.tensor([behind_a_space(model, q.answer)[0] for q in questions])
        self.before = self._chances(self._ends["end"].logits())
        wanted = [at.index for at in model.layers] if lenses is not None else list(layers)
        self._activation = [
            capture(model, ids[None], layers=wanted, residual=True) for ids in prompts
        ]
        self._memory = cache(self._make_memory)
        self._lifts = cache(self._lift)
        self._pointed = cache(self._point)

    def injected(
        self, setting: Setting, *, memory_of: Sequence[int] | None = None
    ) -> Float[Tensor, " question"]:
        """The right answers' probabilities with every question's memory injected.

        Args:
            memory_of: for each question, the index of the question whose memory it gets instead.
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
        """The injections for one question."""
        number = row if memory_of is None else memory_of
        q = self.questions[number]
        memory = self._memory(setting.form, q.memory if setting.form == "text" else q.bridge)
        position = -1 if setting.where == "end" else self.backs[row]
        places: Sequence[Place] = [(setting.layer, None)] if setting.layer is not None else ()
        return [
            memory.injection(
                self._activation[row], place, strength=setting.strength, positions=[position]
            )
            for place in places or self._pointed(number, row, position)
        ]

    def _make_memory(self, form: Form, text: str) -> Memory:
        return Memory(self.model, text, form=form, lenses=self._lenses)

    def _point(self, number: int, row: int, position: int) -> list[Place]:
        assert self._lenses is not None, "a setting without a layer comes with lenses"
        lifts = self._lifts(row, position)
        bridge = memory_tokens(self.model, self.questions[number].bridge)
        lift = torch.stack([lifts[token] for token in bridge]).mean(0)
        best = lift.topk(min(POINTED, len(lift))).indices.tolist()
        return [self._lenses.sites[site] for site in best]

    def _lift(self, row: int, position: int) -> dict[int, Float[Tensor, " site"]]:
        """The lifts of all bridges at once, which cost no more than those of one."""
        assert self._lenses is not None, "a setting without a layer comes with lenses"
        tokens = sorted({t for q in self.questions for t in memory_tokens(self.model, q.bridge)})
        question = self.questions[row].question
        lifts = lens_lifts(self._lenses, question, tokens, position=position)
        return dict(zip(tokens, lifts.T, strict=True))

    def _chances(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1).gather(1, self._answers.to(logits.device)[:, None])[:, 0].cpu()


# Strength 1 is the norm of the activation there. Tokens are added; a text of strength 1 replaces
# the activation.
STRENGTHS: dict[tuple[Form, Where], tuple[float, ...]] = {
    ("unembedding", "end"): (0.1, 0.3),
    ("unembedding", "phrase"): (1.0,),
    ("text", "end"): (0.5,),
    ("text", "phrase"): (0.75, 1.0),
}
POINTED_STRENGTH = 1.0


@dataclass(frozen=True, kw_only=True)
class HopReport:
    """How memories of the bridge change the answers of two-hop questions."""

    settings: tuple[Setting, Setting]
    """Each chosen on one half of the questions."""
    costs: tuple[float, float]
    """Of each setting, the relative increase of the perplexity of unrelated text."""
    crossed: HopMetrics
    """Every question with the setting chosen on the other half."""
    control: HopMetrics
    """The same with the memory of a question with another bridge and another answer."""
    searched: HopMetrics
    """Every question with its own best setting: what a search for a single edit finds."""
    searched_control: HopMetrics
    """The same search, over the settings that were best for some question, with the memory of
    another question: what searching alone brings."""
    tried: dict[Setting, HopMetrics]
    """Every setting, on all questions."""
    known_costs: dict[Setting, float]
    """Costs of the settings that were good enough for the cost to be measured."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        metrics = ("crossed", "control", "searched", "searched_control")
        return {
            "settings": [each._asdict() for each in self.settings],
            "unrelated_perplexity": list(self.costs),
            **{name: getattr(self, name).to_dict() for name in metrics},
            "tried": [
                {**s._asdict(), "unrelated_perplexity": self.known_costs.get(s), **found.to_dict()}
                for s, found in self.tried.items()
            ],
        }


@torch.no_grad()
def measure_two_hops(
    model: LanguageModel,
    questions: Sequence[TwoHop],
    *,
    unrelated: UnrelatedText,
    layers: Sequence[int] | None = None,
    lenses: Lenses | None = None,
    most_cost: float = MOST_COST,
    progress: Callable[..., None] | None = None,
) -> HopReport:
    """Try all settings on the questions whose right answer has a probability below 10 %.

    The best setting of a half has the largest geometric mean of the answer's rise among those whose
    cost is at most ``most_cost``; it is evaluated on the other half, which has other bridges.

    Args:
        questions: the model knows their single hops.
        layers: the layers to try; every third by default.
        lenses: to choose heads and for the form "lens"; without them neither is tried.
        most_cost: maximum relative increase of the perplexity of unrelated text.
    """
    layers = list(layers or [at.index for at in model.layers][::3])
    low = [q for q, p in zip(questions, chances_of(model, questions), strict=True) if p < LOW]
    trial = HopTrial(model, low, layers=layers, lenses=lenses)
    settings = list(all_settings(layers, with_lenses=lenses is not None))
    right: dict[Setting, Tensor] = {}
    for setting in settings:
        right[setting] = trial.injected(setting)
        if progress is not None:
            progress("settings", len(right), len(settings))
    costs = SettingCosts(trial, unrelated, most=most_cost)
    is_first = torch.tensor([q in {*halves(low)[0]} for q in low])
    first, second = (_best(trial.before, right, half, costs) for half in (is_first, ~is_first))
    winners = _best_of_each(right, costs)
    others = another_of_each(low)
    wrong = {
        each: trial.injected(each, memory_of=others)
        for each in settings
        if each in {first, second, *winners}
    }

    def crossed(found: dict[Setting, Tensor]) -> HopMetrics:
        return HopMetrics(trial.before, torch.where(is_first, found[second], found[first]))

    def largest(found: dict[Setting, Tensor]) -> HopMetrics:
        every = torch.stack([found[setting] for setting in winners])
        return HopMetrics(trial.before, every.max(0).values)

    return HopReport(
        settings=(first, second),
        costs=(costs(first), costs(second)),
        crossed=crossed(right),
        control=crossed(wrong),
        searched=largest(right),
        searched_control=largest(wrong),
        tried={setting: HopMetrics(trial.before, after) for setting, after in right.items()},
        known_costs=costs.known,
    )


def all_settings(layers: Sequence[int], *, with_lenses: bool) -> Iterator[Setting]:
    """All settings that are tried."""
    for (form, where), strengths in STRENGTHS.items():
        for strength in strengths:
            if form != "lens":
                yield from (Setting(form, where, layer, strength) for layer in layers)
    if with_lenses:
        for form in get_args(Form):
            for where in get_args(Where):
                yield Setting(form, where, None, POINTED_STRENGTH)


class SettingCosts:
    """The cost of settings on unrelated text, measured at first use and cached.

    Every text gets the memory of a different question.
    """

    def __init__(self, trial: HopTrial, unrelated: UnrelatedText, *, most: float) -> None:
        self._trial, self._unrelated, self._most = trial, unrelated, most
        self.known: dict[Setting, float] = {}

    def __call__(self, setting: Setting) -> float:
        """The relative increase of the perplexity."""
        if setting not in self.known:
            n_texts, n_questions = len(self._unrelated.ids), len(self._trial.questions)
            changes = [
                replace(change, rows=[text])
                for text in range(n_texts)
                for change in self._trial.changes(setting, text * n_questions // n_texts)
            ]
            self.known[setting] = self._unrelated.cost(changes)
        return self.known[setting]

    def is_cheap(self, setting: Setting) -> bool:
        """Whether the cost is within the limit."""
        return self(setting) <= self._most


def another_of_each(questions: Sequence[TwoHop]) -> list[int]:
    """For each question the next one, cyclically, that has another bridge and another answer."""
    n = len(questions)
    return [
        next(
            (row + step) % n
            for step in range(1, n + 1)
            if step == n
            or (
                questions[(row + step) % n].bridge != q.bridge
                and questions[(row + step) % n].answer != q.answer
            )
        )
        for row, q in enumerate(questions)
    ]


def _best(
    before: Float[Tensor, " question"],
    tried: dict[Setting, Tensor],
    rows: Bool[Tensor, " question"],
    costs: SettingCosts,
) -> Setting:
    """The setting with the largest rise on some questions, among the cheap ones."""
    rise = {
        setting: float((after[rows] / before[rows]).log().mean())
        for setting, after in tried.items()
    }
    ranked = sorted(tried, key=lambda setting: -rise[setting])
    cheap = (setting for setting in ranked if costs.is_cheap(setting))
    return next(cheap, None) or min(ranked, key=costs)


def _best_of_each(tried: dict[Setting, Tensor], costs: SettingCosts) -> list[Setting]:
    """The settings that are best for at least one question, among the cheap ones."""
    settings = list(tried)
    after = torch.stack([tried[setting] for setting in settings])  # [setting, question]
    while bool((after >= 0).any()):
        best = {*after.argmax(0).tolist()}
        costly = {i for i in best if not costs.is_cheap(settings[i])}
        if not costly:
            return [settings[i] for i in sorted(best)]
        after[sorted(costly)] = -1.0
    return [min(settings, key=costs)]
