"""MNIST read row by row, as a sequence of 28 steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.recipes.recipe import Recipe
from saccade.training.config import TrainConfig

if TYPE_CHECKING:
    from saccade.models.sequence_reader import SequenceReader
    from saccade.recipes.opened import OpenRun
    from saccade.trace import Trace
    from saccade.training import Job

TRAINING = TrainConfig(
    epochs=16, minutes=15.0, learning_rate=0.004, clip=1.0, schedule="cosine", warmup=200
)


@dataclass(frozen=True, kw_only=True)
class RowMnistSettings:
    """Which cell, and what it is shown."""

    cell: str = "lstm"
    """Any cell of saccade.cells."""
    d_hidden: int = 128
    """Numbers in its state."""
    batch: int = 128
    """Digits in a batch."""
    jitter: int = 1
    """Batches are moved by up to so many pixels while it learns; 0: never."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def build(settings: RowMnistSettings, data: Path | None) -> Job:
    """The job on the digits in ``data``."""
    from saccade.recipes.remembering import row_mnist_job

    return row_mnist_job(settings, data)


def restore(settings: RowMnistSettings, kept: Mapping[str, Any]) -> SequenceReader:
    """The untrained model."""
    del kept
    from saccade.recipes.remembering import row_mnist_model

    return row_mnist_model(settings)


def evaluate(run: OpenRun, data: Path | None) -> Mapping[str, float]:
    """Per cent of the test digits named right."""
    from saccade.recipes.remembering import evaluate_row_mnist

    return evaluate_row_mnist(run, data)


def trace(run: OpenRun, text: str) -> Sequence[Trace]:
    """How much each row of a test digit counts for its name."""
    from saccade.recipes.remembering import trace_row_mnist

    return [trace_row_mnist(run, text)]


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
        build=build,
        restore=restore,
        evaluate=evaluate,
        trace=trace,
    ),
)
