"""A recipe: a reproducible experiment.

A family of recipes is one file: a frozen dataclass of settings with a help string under each field,
one of which is ``training: TrainConfig``; a subclass of `Recipe` that builds the job, restores the
model, evaluates it and traces where it looks; and `RECIPES`, the instances, each with its settings
and the published number it stands beside. docs/guide/own-recipe.md shows a whole one.

`saccade/zoo/recipes/index.json` repeats what `saccade recipes` prints, so that listing them does
not import torch; `make index` writes it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Le

from saccade.errors import RecipeError, UsageError, suggest
from saccade.store.schema import Seed
from saccade.zoo.training.settings import TrainConfig, check_settings

if TYPE_CHECKING:
    from torch import nn

    from saccade.trace.trace import ImageTrace, Trace
    from saccade.zoo.recipes.run import TrainedRun
    from saccade.zoo.training.job import Job

# What can be asked of a trained system, and what it answers; the commands' options are these.

MOST_BEAM = 1000
"""Hypotheses of a sentence: as many as Sutskever et al. rescored."""
MOST_LENGTH = 20_000
"""Symbols of one text."""


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """How a translation is searched for."""

    beam: Annotated[int, Ge(1), Le(MOST_BEAM)] = 5
    """How many hypotheses are kept; 1 is greedy."""
    length_penalty: Annotated[float, Ge(-10), Le(10)] = 1.0
    """0 prefers short translations; 1 weighs by the mean log-probability of a token."""
    max_length: Annotated[int, Ge(1), Le(MOST_LENGTH)] = 100
    """A translation ends here at the latest, in tokens."""


class Translated(NamedTuple):
    """A translation."""

    text: str
    log_prob: float
    """Of the whole of it."""


@dataclass(frozen=True, kw_only=True)
class RescoreOptions:
    """How translations are put into a new order by a second model."""

    n_best: Annotated[int, Ge(1), Le(MOST_BEAM)] = 12
    """So many translations of each sentence are looked at again."""
    weight: Annotated[float, Ge(0), Le(1)] = 0.5
    """How much the second model counts: 0 not at all, 1 alone."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """How text is drawn from a system."""

    length: Annotated[int, Ge(0), Le(MOST_LENGTH)] = 300
    """How many symbols (characters, words, ...)."""
    temperature: float = 1.0
    """Below 1 keeps to what is likely, above 1 dares more."""
    top_k: Annotated[int, Ge(0)] = 0
    """Draw among the so many likeliest symbols only; 0: among all."""
    prompt: str = ""
    """What the text goes on from."""
    seed: Seed = 0
    """Another seed, another text."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a recipe says of itself: a system, a task, a budget, and the published number."""

    name: str
    about: str
    """One line."""
    system: str
    """A module of saccade.zoo.models."""
    task: str
    """A module of saccade.zoo.tasks, or in words."""
    metric: str
    """The metric it is about, a key of what ``evaluate`` gives."""
    is_better: Literal["less", "more"] = "more"
    """Which way the metric is better."""
    at_least: float | None = None
    """What it should reach; where less is better, at most."""
    beside: Mapping[str, float | None] = field(default_factory=dict)
    """Other metrics that its row of results tells, keys of what ``evaluate`` gives, each with what
    it should reach, if anything; better the same way."""
    published: float | None = None
    """The number of the paper or of the best public code."""
    source: str = ""
    """Where that is printed."""
    note: str = ""
    """Why ours and the published number differ, if they should."""
    minutes: float
    """How long it takes on two cores."""
    gallery: tuple[str, ...] = ()
    """Inputs of ``trace`` whose pictures are worth showing; the gallery of the docs has them."""

    @property
    def bound(self) -> str:
        """What ``at_least`` is, in words."""
        return "at most" if self.is_better == "less" else "at least"

    def reaches(self, value: float, wanted: float) -> bool:
        """Whether a value is what was wanted."""
        return value <= wanted if self.is_better == "less" else value >= wanted


@dataclass(frozen=True, kw_only=True)
class Recipe(Facts, ABC):
    """A reproducible experiment.

    A family subclasses it and implements `build`, `restore` and `evaluate`; `trace`, `translate`,
    `sample` and `unknown_words` where the system can do these.
    """

    settings: Any
    """A frozen dataclass; `--set key=value` changes its fields."""
    may_differ: frozenset[str] = frozenset()
    """Settings in which runs that are used together may differ, beside those of the training."""

    def __post_init__(self) -> None:
        training = getattr(self.settings, "training", None)
        assert is_dataclass(self.settings) and isinstance(training, TrainConfig), (
            f"the settings of {self.name} must be a dataclass with a field `training: TrainConfig`"
        )
        check_settings(self.settings)

    @abstractmethod
    def build(self, settings: Any, data: Path | None) -> Job:
        """The job: model, batches, loss, validation.

        Args:
            data: the folder with data sets; where they usually are if there is none.
        """

    @abstractmethod
    def restore(self, settings: Any, kept: Mapping[str, Any]) -> nn.Module:
        """The model without its weights, from the settings and what the job kept beside them."""

    @abstractmethod
    def evaluate(self, run: TrainedRun, data: Path | None) -> Mapping[str, float]:
        """Metrics on test data, ``metric`` among them."""

    def trace(
        self, run: TrainedRun, text: str, *, data: Path | None = None
    ) -> Sequence[Trace | ImageTrace]:
        """Where attention goes while the system works on a user's text, or an image it names."""
        raise self.cannot("has no attention to trace")

    def translate(
        self,
        run: TrainedRun,
        texts: Sequence[str],
        options: TranslateOptions,
        *,
        data: Path | None = None,
    ) -> Sequence[Translated]:
        """Translations of sentences, or what is said in a recording, or written by hand.

        Args:
            data: the folder with data sets, for inputs that name a part of one.
        """
        raise self.cannot("is no translator")

    def sample(self, run: TrainedRun, options: SampleOptions) -> str:
        """Text drawn from the system."""
        raise self.cannot("does not write text")

    def unknown_words(
        self, run: TrainedRun, text: str, *, data: Path | None = None
    ) -> Sequence[str]:
        """Words of a user's text that the system reads as ``<unk>``; none by default."""
        del run, text, data
        return ()

    @property
    def can_trace(self) -> bool:
        """Whether there is attention to watch."""
        return type(self).trace is not Recipe.trace

    @property
    def can_translate(self) -> bool:
        """Whether it turns an input of the user's into text."""
        return type(self).translate is not Recipe.translate

    def cannot(self, what: str) -> UsageError:
        """The error for what this system does not do."""
        return UsageError(f"{self.name} {what}", hint="`saccade recipes` lists others")


# All recipes: those of this package, by the index, and those that a plugin registers.
#
# Families import torch, which takes seconds. So `index.json` repeats what a list of recipes shows,
# and names the module of each; only that one is imported when a recipe is used.

INDEX = "index.json"
_REGISTERED: dict[str, Recipe] = {}


@dataclass(frozen=True, kw_only=True)
class Entry(Facts):
    """What the index says of a recipe."""

    module: str
    """The module of `saccade.zoo.recipes` that has it; none for one of a plugin's."""
    can_trace: bool

    @classmethod
    def of(cls, recipe: Recipe, module: str = "") -> Entry:
        """The entry of a recipe."""
        facts = {field.name: getattr(recipe, field.name) for field in fields(Facts)}
        return cls(**facts, module=module, can_trace=recipe.can_trace)


def register_recipe(recipe: Recipe) -> None:
    """Make a recipe of one's own known to every command; see `--plugin`."""
    _REGISTERED[recipe.name] = recipe


def list_recipes() -> dict[str, Entry]:
    """What there is, by name, in the order of the names; imports no model."""
    own = {name: Entry.of(recipe) for name, recipe in _REGISTERED.items()}
    return dict(sorted({**_index(), **own}.items()))


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; refuses an unknown one with the nearest that is known."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _index():
        module = import_module(f"saccade.zoo.recipes.{_index()[name].module}")
        return next(recipe for recipe in module.RECIPES if recipe.name == name)
    hint = suggest(name, list_recipes()) or "`saccade recipes` lists them."
    raise RecipeError(
        f"there is no recipe {name!r}", hint=f"{hint} One of your own needs --plugin FILE"
    )


def all_recipes() -> dict[str, Recipe]:
    """Every recipe itself, by name; imports all families."""
    return {name: find_recipe(name) for name in list_recipes()}


def families() -> dict[str, tuple[Recipe, ...]]:
    """The recipes of each module of this package that has some: what the index is made from."""
    found = {}
    for path in sorted(Path(str(files("saccade.zoo.recipes"))).glob("*.py")):
        if path.stem != "__init__":
            module = import_module(f"saccade.zoo.recipes.{path.stem}")
            if recipes := getattr(module, "RECIPES", ()):
                found[path.stem] = recipes
    return found


def written_index() -> str:
    """What `index.json` should hold."""
    entries = [
        Entry.of(recipe, module) for module, recipes in families().items() for recipe in recipes
    ]
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names), "two recipes have one name"
    rows = [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.name)]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


@cache
def _index() -> dict[str, Entry]:
    text = files("saccade.zoo.recipes").joinpath(INDEX).read_text(encoding="utf-8")
    rows = json.loads(text)
    return {row["name"]: Entry(**{**row, "gallery": tuple(row["gallery"])}) for row in rows}
