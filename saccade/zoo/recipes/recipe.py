"""A recipe: a reproducible experiment.

A family of recipes is one file: a frozen dataclass of settings with a help string under each field,
one of which is ``training: TrainConfig``; a subclass of `Recipe` that builds the job, restores the
model, evaluates it and traces where it looks; and `RECIPES`, the instances, each with its settings
and the published number it is compared with. docs/guide/own-recipe.md shows a whole one.

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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Le

from saccade.errors import RecipeError, UsageError, suggest
from saccade.store.schema import Seed
from saccade.zoo.training.settings import TrainConfig, check_settings

if TYPE_CHECKING:
    from torch import nn

    from saccade.trace.trace import ImageTrace, Trace
    from saccade.zoo.recipes.run import TrainedRun
    from saccade.zoo.training.job import Job

# Options and results of a trained system's methods; the command-line options are made from these.

MOST_BEAM = 1000
"""Maximum beam size: as many hypotheses as Sutskever et al. rescored."""
MOST_LENGTH = 20_000
"""Maximum number of symbols of one text."""


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """Search options of a translation."""

    beam: Annotated[int, Ge(1), Le(MOST_BEAM)] = 5
    """Beam size; 1 is greedy."""
    length_penalty: Annotated[float, Ge(-10), Le(10)] = 1.0
    """0 prefers short translations; 1 ranks by the mean log-probability of a token."""
    max_length: Annotated[int, Ge(1), Le(MOST_LENGTH)] = 100
    """Maximum length of a translation in tokens."""


class Translated(NamedTuple):
    """A translation."""

    text: str
    log_prob: float
    """Of the whole translation."""


@dataclass(frozen=True, kw_only=True)
class RescoreOptions:
    """Options of reranking by a second model."""

    n_best: Annotated[int, Ge(1), Le(MOST_BEAM)] = 12
    """Number of translations of each sentence that are rescored."""
    weight: Annotated[float, Ge(0), Le(1)] = 0.5
    """Weight of the second model: 0 none, 1 alone."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Options of sampling."""

    length: Annotated[int, Ge(0), Le(MOST_LENGTH)] = 300
    """Number of symbols (characters, words, ...)."""
    temperature: float = 1.0
    """Below 1 samples likely symbols more often, above 1 unlikely ones."""
    top_k: Annotated[int, Ge(0)] = 0
    """Sample only among the k most likely symbols; 0: among all."""
    prompt: str = ""
    """The beginning of the text."""
    seed: Seed = 0
    """Seed of all random draws."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of a recipe: a system, a task, a budget, and the published number."""

    name: str
    about: str
    """One line."""
    system: str
    """A module of saccade.zoo.models."""
    task: str
    """A module of saccade.zoo.tasks, or a description."""
    metric: str
    """The main metric, a key of the result of ``evaluate``."""
    is_better: Literal["less", "more"] = "more"
    """Whether a lower or a higher metric is better."""
    target: float | None = None
    """The target value; an upper bound where less is better."""
    other_metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Other metrics in its row of results, keys of the result of ``evaluate``, each with its target
    value or None; better in the same direction."""
    published: float | None = None
    """The number of the paper or of the best public code."""
    source: str = ""
    """The source of that number."""
    note: str = ""
    """Why ours and the published number differ."""
    minutes: float
    """Duration on two cores."""
    gallery: tuple[str, ...] = ()
    """Inputs of ``trace`` whose plots are in the gallery of the docs."""

    @property
    def bound(self) -> str:
        """The kind of bound of ``target``, in words."""
        return "at most" if self.is_better == "less" else "at least"

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value reaches a target."""
        return value <= target if self.is_better == "less" else value >= target


class InputFile(str):
    """A file that a user gives to a trained system: as text its name, with its bytes.

    A plain text never names a file. Who opens files is who may: the command line and Python, for a
    user's own paths; the viewer takes uploaded bytes.
    """

    __slots__ = ("data",)
    data: bytes

    def __new__(cls, name: str, data: bytes) -> InputFile:
        """A name and what the file holds."""
        self = super().__new__(cls, name)
        self.data = data
        return self

    @classmethod
    def read(cls, path: str | Path) -> InputFile:
        """The file of a path."""
        try:
            return cls(str(path), Path(path).read_bytes())
        except OSError as error:
            raise UsageError(
                f"could not read {path}: {error.strerror or error}", hint="check the path"
            ) from error


@dataclass(frozen=True, kw_only=True)
class Recipe(Facts, ABC):
    """A reproducible experiment.

    A family subclasses it and implements `build`, `restore` and `evaluate`; `trace`, `translate`,
    `sample` and `unknown_words` where the system can do these.
    """

    settings: Any
    """A frozen dataclass; `--set key=value` changes its fields."""
    may_differ: frozenset[str] = frozenset()
    """Settings, apart from those of the training, in which runs of an ensemble may differ."""
    reads_files: ClassVar[bool] = False
    """Whether an input may be an `InputFile`: an image, a sound, strokes."""

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
            data: the folder with data sets; default: the usual locations.
        """

    @abstractmethod
    def restore(self, settings: Any, kept: Mapping[str, Any]) -> nn.Module:
        """The model without its weights, from the settings and the job's ``kept``."""

    @abstractmethod
    def evaluate(self, run: TrainedRun, data: Path | None) -> Mapping[str, float]:
        """Metrics on test data, ``metric`` among them."""

    def trace(
        self, run: TrainedRun, text: str, *, data: Path | None = None
    ) -> Sequence[Trace | ImageTrace]:
        """Where attention goes for a user's text, or for an image that it names."""
        raise self.cannot("has no attention to trace")

    def translate(
        self,
        run: TrainedRun,
        texts: Sequence[str],
        options: TranslateOptions,
        *,
        data: Path | None = None,
    ) -> Sequence[Translated]:
        """Translations of sentences, or the text of a recording or of handwriting.

        Args:
            data: the folder with data sets, for inputs that name an item of one.
        """
        raise self.cannot("is no translator")

    def sample(self, run: TrainedRun, options: SampleOptions) -> str:
        """Text drawn from the system."""
        raise self.cannot("does not generate text")

    def unknown_words(
        self, run: TrainedRun, text: str, *, data: Path | None = None
    ) -> Sequence[str]:
        """Words of a user's text that the system reads as ``<unk>``; none by default."""
        del run, text, data
        return ()

    @property
    def can_trace(self) -> bool:
        """Whether it has a trace."""
        return type(self).trace is not Recipe.trace

    @property
    def can_translate(self) -> bool:
        """Whether it turns a user's input into text."""
        return type(self).translate is not Recipe.translate

    def cannot(self, what: str) -> UsageError:
        """The error for an unsupported operation."""
        return UsageError(f"{self.name} {what}", hint="`saccade recipes` lists others")


# All recipes: those of this package, by the index, and those that a plugin registers.
#
# Families import torch, which takes seconds. So `index.json` repeats the facts of all recipes and
# names their modules; only that module is imported when a recipe is used.

INDEX = "index.json"
_REGISTERED: dict[str, Recipe] = {}


@dataclass(frozen=True, kw_only=True)
class Entry(Facts):
    """The entry of a recipe in the index."""

    module: str
    """Its module in `saccade.zoo.recipes`; empty for a plugin."""
    can_trace: bool

    @classmethod
    def of(cls, recipe: Recipe, module: str = "") -> Entry:
        """The entry of a recipe."""
        facts = {field.name: getattr(recipe, field.name) for field in fields(Facts)}
        return cls(**facts, module=module, can_trace=recipe.can_trace)


def register_recipe(recipe: Recipe) -> None:
    """Register your own recipe for all commands; see `--plugin`."""
    _REGISTERED[recipe.name] = recipe


def list_recipes() -> dict[str, Entry]:
    """All recipes, sorted by name; imports no model."""
    own = {name: Entry.of(recipe) for name, recipe in _REGISTERED.items()}
    return dict(sorted({**_index(), **own}.items()))


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; the error for an unknown one suggests the nearest name."""
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
    """All recipe objects, by name; imports all families."""
    return {name: find_recipe(name) for name in list_recipes()}


def families() -> dict[str, tuple[Recipe, ...]]:
    """The recipes of each module of this package, from which the index is made."""
    found = {}
    for path in sorted(Path(str(files("saccade.zoo.recipes"))).glob("*.py")):
        if path.stem != "__init__":
            module = import_module(f"saccade.zoo.recipes.{path.stem}")
            if recipes := getattr(module, "RECIPES", ()):
                found[path.stem] = recipes
    return found


def written_index() -> str:
    """The content of `index.json`."""
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
