"""DRAW on binarised MNIST, with and without attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.recipes.recipe import Recipe
from saccade.training.config import TrainConfig

if TYPE_CHECKING:
    from saccade.models.draw import Draw
    from saccade.recipes.opened import OpenRun
    from saccade.trace import ImageTrace
    from saccade.training import Job

TRAINING = TrainConfig(
    epochs=40, minutes=58.0, learning_rate=0.002, clip=5.0, schedule="cosine", warmup=200
)


@dataclass(frozen=True, kw_only=True)
class DrawSettings:
    """How a digit is drawn."""

    has_attention: bool = True
    """Read and write patches where it wants to; else the whole image at every step."""
    n_steps: int = 12
    """Strokes of a drawing."""
    read_size: int = 8
    """Filters on a side of the grid it reads through; the paper's: 2."""
    write_size: int = 8
    """Filters on a side of the grid it writes through; the paper's: 5."""
    d_hidden: int = 256
    """Numbers in the state of encoder and of decoder."""
    d_latent: int = 32
    """Numbers in the latent of a step."""
    batch: int = 128
    """Digits in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def build(settings: DrawSettings, data: Path | None) -> Job:
    """The job on the digits in ``data``."""
    from saccade.recipes.drawing import draw_job

    return draw_job(settings, data)


def restore(settings: DrawSettings, kept: Mapping[str, Any]) -> Draw:
    """The untrained model."""
    del kept
    from saccade.recipes.drawing import draw_model

    return draw_model(settings)


def evaluate(run: OpenRun, data: Path | None) -> Mapping[str, float]:
    """The bound on the test digits."""
    from saccade.recipes.drawing import evaluate_draw

    return evaluate_draw(run, data)


def trace(run: OpenRun, text: str) -> Sequence[ImageTrace]:
    """A test digit drawn again, by its number; or ``sample``, digits that nobody wrote."""
    from saccade.recipes.drawing import trace_draw

    return [trace_draw(run, text)]


WITH = Recipe(
    name="draw-mnist",
    about="DRAW reads a digit and draws it again, stroke by stroke.",
    system="draw",
    task="binarised",
    metric="nats",
    is_better="less",
    at_least=96.0,
    published=80.97,
    source="https://arxiv.org/abs/1502.04623, table 2",
    note="12 larger strokes (8 x 8) instead of 64 small ones (5 x 5), and less than an hour on two "
    "cores: the bound still falls when it is over.",
    minutes=58.0,
    settings=DrawSettings(),
    build=build,
    restore=restore,
    evaluate=evaluate,
    trace=trace,
    gallery=("0", "sample"),
)
RECIPES = (
    WITH,
    replace(
        WITH,
        name="draw-mnist-noattention",
        about="The control: DRAW that reads and writes the whole image at every stroke.",
        at_least=None,
        published=87.40,
        settings=replace(WITH.settings, has_attention=False),
    ),
)
