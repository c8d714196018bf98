"""The copying problem: which cell can carry ten symbols over a silence of 100 steps?"""

from __future__ import annotations

from dataclasses import dataclass

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, Many, NonNegative, TrainConfig, Width

TRAINING = TrainConfig(
    steps=4000, minutes=15.0, learning_rate=0.01, clip=1.0, schedule="cosine", warmup=100
)


@dataclass(frozen=True, kw_only=True)
class CopyingSettings:
    """Which cell, and how long the silence is."""

    cell: str = "unitary"
    """Any cell of saccade.zoo.cells."""
    d_hidden: Width = 128
    """Numbers in its state."""
    is_keeping: bool = False
    """The gates of lstm and gru begin so that values are kept for up to the whole sequence."""
    length: Many = 100
    """Steps of silence."""
    batch: Batch = 64
    """Sequences in a batch."""
    enough: NonNegative = 0.9999
    """Training ends when this share of the held-out symbols is recalled."""
    n_valid: Many = 500
    """Sequences to see by whether it is solved."""
    n_test: Many = 2000
    """Sequences to report on."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def _recipe(
    settings: CopyingSettings, *, about: str, minutes: float, note: str, solved: bool = True
) -> Recipe:
    return Recipe(
        name=f"copying-{settings.cell}",
        about=about,
        system="sequence_reader",
        task="copying",
        metric="recalled",
        at_least=0.99 if solved else None,
        published=1.0 if solved else None,
        source="https://arxiv.org/abs/1511.06464, figure 1",
        note=note,
        minutes=minutes,
        settings=settings,
        build=Later("remembering.copying_job", takes=1),
        restore=Later("remembering.copying_model", takes=1),
        evaluate=Later("remembering.evaluate_copying", takes=1),
        trace=Later("remembering.trace_copying"),
    )


RECIPES = (
    _recipe(
        CopyingSettings(),
        about="A complex state that is only turned recalls ten symbols after 100 silent steps.",
        minutes=0.5,
        note="The paper's curve reaches an error of zero; guessing recalls 0.125.",
    ),
    _recipe(
        CopyingSettings(cell="lstm", is_keeping=True),
        about="The control: an LSTM in the same time.",
        minutes=15.0,
        note="In the paper it stays at what guessing gives, 0.125, for silences of 100 and more.",
        solved=False,
    ),
)
