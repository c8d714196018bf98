"""Search how memories are best injected for two-hop questions, and judge it on other questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.investigations.hop_trial import HopTrial, Setting, Where
from saccade.investigations.injection import Form
from saccade.investigations.multi_hop import LOW, HopFigures, TwoHop, chances_of, halves
from saccade.investigations.unrelated_text import MOST_COST, UnrelatedText

if TYPE_CHECKING:
    from saccade.heads import LanguageModel
    from saccade.lenses.collection import Lenses

# What is there has strength 1. Words are added to it; a text of strength 1 takes its place.
STRENGTHS: dict[tuple[Form, Where], tuple[float, ...]] = {
    ("unembedding", "end"): (0.1, 0.3),
    ("unembedding", "phrase"): (1.0,),
    ("text", "end"): (0.5,),
    ("text", "phrase"): (0.75, 1.0),
}
POINTED_STRENGTH = 1.0


@dataclass(frozen=True, kw_only=True)
class HopReport:
    """What memories of the bridge do for the answers of two-hop questions."""

    settings: tuple[Setting, Setting]
    """Chosen on one half of the questions each."""
    costs: tuple[float, float]
    """Of each, the rise of the perplexity of unrelated text."""
    judged: HopFigures
    """Every question with the setting that was chosen on the half it is not in."""
    control: HopFigures
    """The same with the memory of another question, whose bridge and answer are others."""
    searched: HopFigures
    """Every question with the best setting for itself: what a search for one edit finds."""
    searched_control: HopFigures
    """The same search, over the settings that were best for some question, with the memory of
    another question: what searching alone brings."""
    tried: dict[Setting, HopFigures]
    """Every setting, on all questions."""
    known_costs: dict[Setting, float]
    """Of the settings that were good enough to be looked at."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        named = ("judged", "control", "searched", "searched_control")
        return {
            "settings": [each._asdict() for each in self.settings],
            "unrelated_perplexity": list(self.costs),
            **{name: getattr(self, name).to_dict() for name in named},
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
    """Try all settings on the questions whose right answer is below a tenth.

    The best setting of a half has the largest geometric mean of the answer's rise among those that
    cost unrelated text little enough; it is judged on the other half, of other bridges.

    Args:
        questions: whose single hops the model knows.
        layers: to try; every third by default.
        lenses: for the heads they point to and for their inverse; without them neither is tried.
        most_cost: a share of the perplexity of unrelated text.
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

    def crossed(found: dict[Setting, Tensor]) -> HopFigures:
        return HopFigures(trial.before, torch.where(is_first, found[second], found[first]))

    def largest(found: dict[Setting, Tensor]) -> HopFigures:
        every = torch.stack([found[setting] for setting in winners])
        return HopFigures(trial.before, every.max(0).values)

    return HopReport(
        settings=(first, second),
        costs=(costs(first), costs(second)),
        judged=crossed(right),
        control=crossed(wrong),
        searched=largest(right),
        searched_control=largest(wrong),
        tried={setting: HopFigures(trial.before, after) for setting, after in right.items()},
        known_costs=costs.known,
    )


def all_settings(layers: Sequence[int], *, with_lenses: bool) -> Iterator[Setting]:
    """Everything that is tried."""
    for (form, where), strengths in STRENGTHS.items():
        for strength in strengths:
            if form != "lens":
                yield from (Setting(form, where, layer, strength) for layer in layers)
    if with_lenses:
        for form in get_args(Form):
            for where in get_args(Where):
                yield Setting(form, where, None, POINTED_STRENGTH)


class SettingCosts:
    """What settings cost unrelated text, each looked at once, when it is asked for.

    Every text gets the memory of another question.
    """

    def __init__(self, trial: HopTrial, unrelated: UnrelatedText, *, most: float) -> None:
        self._trial, self._unrelated, self._most = trial, unrelated, most
        self.known: dict[Setting, float] = {}

    def __call__(self, setting: Setting) -> float:
        """The rise of the perplexity, as a share."""
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
        """Whether that is little enough."""
        return self(setting) <= self._most


def another_of_each(questions: Sequence[TwoHop]) -> list[int]:
    """For each question the next one, going round, whose bridge and answer are others."""
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
    """The setting of the largest rise on some questions, of those that cost little."""
    rise = {
        setting: float((after[rows] / before[rows]).log().mean())
        for setting, after in tried.items()
    }
    ranked = sorted(tried, key=lambda setting: -rise[setting])
    cheap = (setting for setting in ranked if costs.is_cheap(setting))
    return next(cheap, None) or min(ranked, key=costs)


def _best_of_each(tried: dict[Setting, Tensor], costs: SettingCosts) -> list[Setting]:
    """The settings that are best for some question, of those that cost little."""
    settings = list(tried)
    after = torch.stack([tried[setting] for setting in settings])  # [setting, question]
    while bool((after >= 0).any()):
        best = {*after.argmax(0).tolist()}
        dear = {i for i in best if not costs.is_cheap(settings[i])}
        if not dear:
            return [settings[i] for i in sorted(best)]
        after[sorted(dear)] = -1.0
    return [min(settings, key=costs)]
