"""What recipes on bAbI have in common: what can be set, and how they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le, MinLen

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, Few, Many, TrainConfig

if TYPE_CHECKING:
    from torch import nn

    from saccade.trace.trace import Trace
    from saccade.zoo.recipes.opened import OpenRun
    from saccade.zoo.tasks.babi import StoryBatch
    from saccade.zoo.training.job import Job, LossOut

Task = Annotated[int, Ge(1), Le(20)]
Tasks = Annotated[tuple[Task, ...], MinLen(1)]
TASKS = tuple(range(1, 21))
WITHOUT_3 = tuple(task for task in TASKS if task != 3)
"""The archive that is at hand has no 10,000 questions of task 3."""
WHERE_IS_IT = (
    "John took the football there. John went to the hallway. Mary went to the kitchen. "
    "John dropped the football. John moved to the garden. Where is the football?"
)
WHERE_IS_SHE = (
    "Mary moved to the garden. John went to the office. Mary travelled to the kitchen. "
    "Sandra went back to the garden. Where is Mary?"
)
GALLERY = (WHERE_IS_IT, WHERE_IS_SHE)
"""Stories like those of tasks 2 and 1, in their words."""


@dataclass(frozen=True, kw_only=True)
class StorySettings:
    """What can be set about any system on bAbI; a recipe's own settings inherit from it."""

    size: Literal["1k", "10k"] = "1k"
    """1k or 10k questions to learn from in each task."""
    tasks: Tasks = TASKS
    """Which of the twenty tasks; all are learnt by one model."""
    slow_tasks: tuple[Task, ...] = ()
    """Tasks that are learnt slowly: their questions come `n_repeats` times in each epoch."""
    n_repeats: Few = 4
    """How often questions of slow tasks come for once of the others."""
    n_facts: Many = 50
    """How many facts are kept, the latest ones."""
    batch: Batch = 64
    """Questions in a batch."""
    is_bucketed: bool = False
    """Questions after about as many facts go together; for systems that read fact by fact."""
    training: TrainConfig = field(default_factory=TrainConfig)
    """How it is trained."""


MakeModel = Callable[[Any, int], "nn.Module"]
"""``make_model(settings, n_words)``."""
LossOf = Callable[[Any, "nn.Module", "StoryBatch"], "LossOut"]
"""``loss_of(settings, model, batch)``."""
At = Callable[[Any, "nn.Module", float], None]
"""``at(settings, model, way)``: called before each step with the share of the training behind."""


def answer_loss_of(settings: StorySettings, model: nn.Module, batch: StoryBatch) -> LossOut:
    """The likelihood of the right answers."""
    del settings
    from saccade.zoo.recipes.answering import answer_loss

    return answer_loss(model, batch)


def story_recipe(  # noqa: PLR0913  these are a recipe's own fields
    *,
    name: str,
    about: str,
    system: str,
    settings: StorySettings,
    make_model: MakeModel,
    step: str,
    at_least: float | None = None,
    published: float | None = None,
    source: str = "",
    note: str = "",
    minutes: float = 30.0,
    loss_of: LossOf = answer_loss_of,
    at: At | None = None,
) -> Recipe:
    """A recipe for a system whose figure is the mean per cent of wrong answers over tasks.

    Args:
        step: what a look at the story is called in traces, such as ``hop``.
        at: for a system that is trained in stages.
    """

    def build(settings: Any, data: Path | None) -> Job:
        from saccade.zoo.recipes.answering import story_job

        return story_job(settings, data, make_model=make_model, loss_of=loss_of, at=at)

    def restore(settings: Any, kept: Mapping[str, Any]) -> nn.Module:
        return make_model(settings, len(kept["words"]))

    def trace(run: OpenRun, text: str) -> Sequence[Trace]:
        from saccade.zoo.recipes.answering import trace_story

        return [trace_story(run, text, step=step)]

    return Recipe(
        name=name,
        about=about,
        system=system,
        task="babi",
        metric="error",
        is_better="less",
        at_least=at_least,
        published=published,
        source=source,
        note=note,
        minutes=minutes,
        settings=settings,
        build=build,
        restore=restore,
        evaluate=Later("answering.evaluate_stories"),
        trace=trace,
        gallery=GALLERY,
    )
