"""The adding problem: which cell can carry a number over 150 steps?"""

from __future__ import annotations

from dataclasses import dataclass

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, Many, NonNegative, TrainConfig, Width

TRAINING = TrainConfig(steps=6000, minutes=15.0, learning_rate=0.01, clip=1.0)


@dataclass(frozen=True, kw_only=True)
class AddingSettings:
    """Which cell, and how far apart the two numbers are."""

    cell: str = "lstm"
    """Any cell of saccade.zoo.cells."""
    d_hidden: Width = 128
    """Numbers in its state."""
    is_keeping: bool = False
    """The gates of lstm and gru begin so that values are kept for up to the whole sequence."""
    length: Many = 150
    """Steps of a sequence."""
    batch: Batch = 64
    """Sequences in a batch."""
    enough: NonNegative = 0.003
    """Training ends when the held-out error is below this."""
    n_valid: Many = 1000
    """Sequences to see by whether it is solved."""
    n_test: Many = 5000
    """Sequences to report on."""
    training: TrainConfig = TRAINING
    """How it is trained."""


LE = "https://arxiv.org/abs/1504.00941, figure 1"
ARJOVSKY = "https://arxiv.org/abs/1511.06464, figure 2"


def _recipe(
    settings: AddingSettings,
    *,
    about: str,
    source: str,
    minutes: float,
    note: str,
    solved: bool = True,
) -> Recipe:
    return Recipe(
        name=f"adding-{'tanh' if settings.cell == 'elman' else settings.cell}",
        about=about,
        system="sequence_reader",
        task="adding",
        metric="mse",
        is_better="less",
        at_least=0.01 if solved else None,
        published=None,
        source=source,
        note=note,
        minutes=minutes,
        settings=settings,
        build=Later("remembering.adding_job", takes=1),
        restore=Later("remembering.adding_model", takes=1),
        evaluate=Later("remembering.evaluate_adding", takes=1),
        trace=Later("remembering.trace_adding"),
    )


PICTURE = "The paper shows curves and no numbers; always saying 1 has an error of 0.167."
RECIPES = (
    _recipe(
        AddingSettings(cell="lstm", is_keeping=True),
        about="An LSTM adds two numbers of a sequence of 150.",
        minutes=2.0,
        source=LE,
        note=PICTURE,
    ),
    _recipe(
        AddingSettings(cell="gru", is_keeping=True),
        about="A GRU adds two numbers of a sequence of 150.",
        minutes=1.0,
        source=ARJOVSKY,
        note=PICTURE,
    ),
    _recipe(
        AddingSettings(
            cell="irnn",
            training=TrainConfig(
                steps=20_000, minutes=30.0, learning_rate=0.002, clip=1.0, warmup=1000
            ),
        ),
        about="Rectified units that begin as the identity add two numbers of a sequence of 150.",
        minutes=2.0,
        source=LE,
        note=PICTURE,
    ),
    _recipe(
        AddingSettings(
            cell="unitary",
            training=TrainConfig(
                steps=10_000, minutes=40.0, learning_rate=0.003, clip=1.0, schedule="cosine"
            ),
        ),
        about="A complex state that is only turned adds two numbers of a sequence of 150.",
        minutes=20.0,
        source=ARJOVSKY,
        note=PICTURE,
    ),
    _recipe(
        AddingSettings(
            cell="elman",
            training=TrainConfig(steps=6000, minutes=15.0, learning_rate=0.001, clip=1.0),
        ),
        about="The control: a plain tanh network does not learn to add over 150 steps.",
        minutes=5.0,
        source=LE,
        note="It is meant to fail: an error near 0.167, that of always saying 1, is the result.",
        solved=False,
    ),
)
