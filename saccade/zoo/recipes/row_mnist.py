"""MNIST read row by row, as a sequence of 28 steps."""

from __future__ import annotations

from dataclasses import dataclass

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, FewOrNone, TrainConfig, Width

TRAINING = TrainConfig(
    epochs=16, minutes=15.0, learning_rate=0.004, clip=1.0, schedule="cosine", warmup=200
)


@dataclass(frozen=True, kw_only=True)
class RowMnistSettings:
    """Which cell, and what it is shown."""

    cell: str = "lstm"
    """Any cell of saccade.zoo.cells."""
    d_hidden: Width = 128
    """Numbers in its state."""
    batch: Batch = 128
    """Digits in a batch."""
    jitter: FewOrNone = 1
    """Batches are moved by up to so many pixels while it learns; 0: never."""
    training: TrainConfig = TRAINING
    """How it is trained."""


RECIPES = (
    Recipe(
        name="row-mnist",
        about="An LSTM reads a digit row by row and names it.",
        system="sequence_reader",
        task="row_mnist",
        metric="accuracy",
        at_least=98.5,
        published=None,
        source="https://arxiv.org/abs/1504.00941 reads pixel by pixel (97.0 with an IRNN)",
        note="Row by row is easier than the paper's pixel by pixel: 28 steps, not 784.",
        minutes=4.0,
        settings=RowMnistSettings(),
        build=Later("remembering.row_mnist_job"),
        restore=Later("remembering.row_mnist_model", takes=1),
        evaluate=Later("remembering.evaluate_row_mnist"),
        trace=Later("remembering.trace_row_mnist"),
    ),
)
