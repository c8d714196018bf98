"""A recipe: all that it takes to get a number again.

A file of recipes has `RECIPES`, a tuple of them, and a frozen dataclass of settings with a help
string under each field, one of which is ``training: TrainConfig``. What does the work is in a
module beside it, because it needs torch: the recipe names its functions by `Later`, so that
`saccade recipes` can list all recipes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from saccade.zoo.recipes.options import SampleOptions, Translated, TranslateOptions
from saccade.zoo.recipes.settings import check_settings
from saccade.zoo.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import nn

    from saccade.trace.trace import ImageTrace, Trace
    from saccade.zoo.recipes.opened import OpenRun
    from saccade.zoo.training.job import Job


@dataclass(frozen=True)
class Later:
    """A function beside the recipes that is imported when it is called.

    >>> Later("settings.parse")("3", int)
    3
    """

    name: str
    """Its module and its own name, with a dot between them."""
    takes: int | None = None
    """It is given the first so many arguments; all of them unless told."""

    def __call__(self, *args: Any) -> Any:
        """What the function gives."""
        return self.function(*args[: self.takes])

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        module, name = self.name.split(".")
        return getattr(import_module(f"saccade.zoo.recipes.{module}"), name)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A system, a task, a budget, and the published number it stands beside."""

    name: str
    about: str
    """One line."""
    system: str
    """A module of saccade.zoo.models."""
    task: str
    """A module of saccade.zoo.tasks, or in words."""
    metric: str
    """The figure it is about, a key of what ``evaluate`` gives."""
    is_better: Literal["less", "more"] = "more"
    """Which way the metric is better."""
    at_least: float | None = None
    """What it should reach; where less is better, at most."""
    beside: Mapping[str, float | None] = field(default_factory=dict)
    """Other figures that its row of results tells, keys of what ``evaluate`` gives, each with what
    it should reach, if anything; better the same way."""
    published: float | None = None
    """The number of the paper or of the best public code."""
    source: str = ""
    """Where that is printed."""
    note: str = ""
    """Why ours and the published number differ, if they should."""
    minutes: float
    """How long it takes on two cores."""
    settings: Any
    """A frozen dataclass; `--set key=value` changes its fields."""
    build: Callable[[Any, Path | None], Job]
    """``build(settings, data)``: the job, from data sets in that folder, or where they usually are
    if there is none."""
    restore: Callable[[Any, Mapping[str, Any]], nn.Module]
    """``restore(settings, kept)``: the model without its weights, from what the job kept."""
    evaluate: Callable[[OpenRun, Path | None], Mapping[str, float]]
    """``evaluate(run, data)``: figures on test data, ``metric`` among them."""
    trace: Callable[[OpenRun, str], Sequence[Trace | ImageTrace]] | None = None
    """``trace(run, text)``: where attention goes while the system works on a text of the user's, or
    on an image that the text names."""
    translate: Callable[[OpenRun, Sequence[str], TranslateOptions], Sequence[Translated]] | None = (
        None
    )
    sample: Callable[[OpenRun, SampleOptions], str] | None = None
    unknown_words: Callable[[OpenRun, str], Sequence[str]] | None = None
    """``unknown_words(run, text)``: words of a user's text that the system reads as ``<unk>``."""
    may_differ: frozenset[str] = frozenset()
    """Settings in which runs that are used together may differ, beside those of the training."""
    gallery: tuple[str, ...] = ()
    """Inputs of ``trace`` whose pictures are worth showing; see `saccade gallery`."""

    def __post_init__(self) -> None:
        training = getattr(self.settings, "training", None)
        assert is_dataclass(self.settings) and isinstance(training, TrainConfig), (
            f"the settings of {self.name} must be a dataclass with a field `training: TrainConfig`"
        )
        check_settings(self.settings)

    @property
    def bound(self) -> str:
        """What ``at_least`` is, in words."""
        return "at most" if self.is_better == "less" else "at least"

    def reaches(self, value: float, wanted: float) -> bool:
        """Whether a figure is what was wanted."""
        return value <= wanted if self.is_better == "less" else value >= wanted
