"""Memory networks on bAbI, which are told the facts that each answer rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from saccade.zoo.recipes.stories import StorySettings, story_recipe
from saccade.zoo.training.config import BelowOne, Few, Many, NonNegative, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn

    from saccade.zoo.tasks.babi import StoryBatch
    from saccade.zoo.training.job import LossOut

TRAINING = TrainConfig(epochs=40, minutes=50.0, learning_rate=0.003, clip=5.0, schedule="linear")


@dataclass(frozen=True, kw_only=True)
class MemNNSettings(StorySettings):
    """Sizes, and by how much the right fact and word must lead."""

    n_facts: Many = 100
    """How many facts are kept, the latest ones."""
    d_embed: Width = 100
    """Numbers of a word and of a fact."""
    d_hidden: Width = 200
    """Units between what was found and the answer."""
    max_steps: Few = 10
    """How many facts are looked for at most."""
    margin: NonNegative = 0.0
    """By how much the right one must lead, 0.1 in the paper; 0: likelihood instead."""
    dropout: BelowOne = 0.1
    """On what is looked for, and before the answer."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def make_model(settings: MemNNSettings, n_words: int) -> nn.Module:
    """The model of these settings."""
    from saccade.zoo.models.memnn import MemNN

    return MemNN(
        n_words=n_words,
        d_embed=settings.d_embed,
        d_hidden=settings.d_hidden,
        n_ages=settings.n_facts,
        max_steps=settings.max_steps,
        dropout=settings.dropout,
    )


def loss_of(settings: MemNNSettings, model: nn.Module, batch: StoryBatch) -> LossOut:
    """Of finding facts and of answering."""
    from saccade.zoo.recipes.answering import supported_loss

    return supported_loss(model, batch, margin=settings.margin)


RECIPES = (
    story_recipe(
        name="memnn-babi",
        about="Facts are looked for until none is missing, told which are right; bAbI, 1k each.",
        system="memnn",
        settings=MemNNSettings(),
        make_model=make_model,
        loss_of=loss_of,
        step="fact",
        at_least=10.0,
        published=7.0,
        source="https://arxiv.org/abs/1502.05698, table 3, AM+NG+NL",
        note="Theirs is a model for each task; ours is one for all, and learns by likelihood.",
        minutes=4.0,
    ),
)
