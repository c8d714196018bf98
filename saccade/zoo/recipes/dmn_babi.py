"""Dynamic memory networks on bAbI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from saccade.zoo.recipes.stories import WITHOUT_3, StorySettings, Task, Tasks, story_recipe
from saccade.zoo.training.config import Batch, BelowOne, Few, Many, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn

TRAINING = TrainConfig(
    epochs=30, minutes=58.0, learning_rate=0.001, clip=5.0, schedule="linear", warmup=200
)


@dataclass(frozen=True, kw_only=True)
class DmnSettings(StorySettings):
    """Which form, and its sizes."""

    size: Literal["1k", "10k"] = "10k"
    """1k or 10k questions to learn from in each task."""
    tasks: Tasks = WITHOUT_3
    """Which of the twenty tasks; all are learnt by one model."""
    slow_tasks: tuple[Task, ...] = (15, 17, 18, 19)
    """Tasks that are learnt slowly: their questions come `n_repeats` times in each epoch."""
    n_facts: Many = 130
    """How many facts are kept, the latest ones."""
    batch: Batch = 128
    """Questions in a batch."""
    is_bucketed: bool = True
    """Questions after about as many facts go together."""
    form: Literal["plus", "original"] = "plus"
    """plus: input fusion, softmax gates, untied memories; original: as first published."""
    d_hidden: Width = 80
    """Units of every part."""
    n_episodes: Few = 3
    """How often the story is read."""
    dropout: BelowOne = 0.1
    """On facts, on questions, and before the answer."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def make_model(settings: DmnSettings, n_words: int) -> nn.Module:
    """The model of these settings."""
    from saccade.zoo.models.dmn import DynamicMemoryNetwork

    return DynamicMemoryNetwork(
        n_words=n_words,
        d_hidden=settings.d_hidden,
        n_episodes=settings.n_episodes,
        form=settings.form,
        dropout=settings.dropout,
    )


RECIPES = (
    story_recipe(
        name="dmn-babi-10k",
        about="DMN+: three episodes of reading answer 19 kinds of bAbI questions, 10k each.",
        system="dmn",
        settings=DmnSettings(),
        make_model=make_model,
        step="episode",
        at_least=8.0,
        published=2.8,
        source="https://arxiv.org/abs/1603.01417, table 2",
        note="Theirs is of 20 tasks, a model each, the best of ten trainings.",
        minutes=45.0,
    ),
)
