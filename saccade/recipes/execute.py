"""Learning to Execute: what does this program print?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from saccade.recipes.options import Translated, TranslateOptions
from saccade.recipes.recipe import Recipe
from saccade.training.config import TrainConfig

if TYPE_CHECKING:
    from saccade.models.program_executor import ProgramExecutor
    from saccade.recipes.opened import OpenRun
    from saccade.trace import Trace
    from saccade.training import Job

Strategy = Literal["baseline", "naive", "mix", "combined"]
TRAINING = TrainConfig(
    steps=45_000,
    minutes=42.0,
    optimiser="adam",
    learning_rate=5e-3,
    clip=1.0,
    schedule="cosine",
    warmup=800,
    validate_steps=1000,
)


@dataclass(frozen=True, kw_only=True)
class ExecuteSettings:
    """Which programs, and what reads them."""

    length: int = 3
    """Digits of the largest numbers."""
    nesting: int = 1
    """Operations that are combined."""
    strategy: Strategy = "mix"
    """The curriculum: baseline, naive, mix or combined.

    The paper's best is combined. Without nesting its first stage has so few programs that they are
    learnt by heart, and little is learnt of longer ones meanwhile.
    """
    focus: int = 30
    """Epochs in which the share of programs of the full difficulty, whatever the curriculum draws,
    rises from none to four fifths; 0: the curriculum alone.

    Sums of two digits are learnt from a mix of lengths; then most of what is left to learn is in
    the longest programs, of which the mix has one in ``length``.
    """
    is_scrambled: bool = False
    """Programs and results in a secret alphabet: the control that characters mean nothing."""
    programs: int = 50_000
    """New programs in every epoch."""
    batch_tokens: int = 2048
    """Characters in a batch, padding included; some sixty programs.

    In the same time small batches learn far more than large ones, whose steps are few.
    """
    d_embed: int = 64
    """Width of a character's embedding."""
    d_hidden: int = 256
    """Width of a layer."""
    n_layers: int = 1
    """How many layers there are; the paper has two, which learn less in the same time."""
    dropout: float = 0.0
    """Between layers; new programs at every step leave nothing to overfit."""
    n_valid: int = 2_000
    """Programs to choose the best weights by, and to see whether learning makes progress."""
    n_test: int = 5_000
    """Programs to report on."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def build(settings: ExecuteSettings, data: Path | None) -> Job:
    """Programs are made as they are needed; there is no data to read."""
    from saccade.recipes.executing import execute_job

    del data
    return execute_job(settings)


def restore(settings: ExecuteSettings, kept: Mapping[str, Any]) -> ProgramExecutor:
    """The untrained model."""
    from saccade.recipes.executing import make_model

    del kept
    return make_model(settings)


def evaluate(run: OpenRun, data: Path | None) -> Mapping[str, float]:
    """Characters and whole results that are right, on programs never seen."""
    from saccade.recipes.executing import evaluate_executor

    del data
    return evaluate_executor(run)


def trace(run: OpenRun, text: str) -> Sequence[Trace]:
    """How much each character of a program counts for each one written."""
    from saccade.recipes.executing import trace_program

    return [trace_program(run, text)]


def translate(
    run: OpenRun, texts: Sequence[str], options: TranslateOptions
) -> Sequence[Translated]:
    r"""What each program prints; its lines may be joined by ``\n`` or by semicolons."""
    from saccade.recipes.executing import run_programs

    return run_programs(run, texts, options)


RECIPES = (
    Recipe(
        name="execute",
        about="Reads a short Python program and writes what it prints, character by character.",
        system="program_executor",
        task="programs",
        metric="exact",
        at_least=60.0,
        source="Zaremba and Sutskever, 2014, https://arxiv.org/abs/1410.4615",
        note="Exact is without help; the paper reports characters that are right after the right "
        "ones before them, as curves only. Of those 90 % were wanted, and 87.0 % were reached: a "
        "loop adds a number up to 12 times, and is exact in 13 of 100.",
        minutes=43.0,
        settings=ExecuteSettings(),
        build=build,
        restore=restore,
        evaluate=evaluate,
        trace=trace,
        translate=translate,
    ),
)
