"""Learning to Execute: what does this program print?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import BelowOne, Few, FewOrNone, Many, TrainConfig, Width

Strategy = Literal["baseline", "naive", "mix", "combined"]
TRAINING = TrainConfig(
    steps=62_000,
    minutes=42.0,
    optimiser="adam",
    learning_rate=5e-3,
    clip=1.0,
    schedule="cosine",
    warmup=800,
    validate_steps=2000,
)


@dataclass(frozen=True, kw_only=True)
class ExecuteSettings:
    """Which programs, and what reads them."""

    length: Many = 3
    """Digits of the largest numbers."""
    nesting: Few = 1
    """Operations that are combined."""
    strategy: Strategy = "mix"
    """The curriculum: baseline, naive, mix or combined.

    The paper's best is combined. Without nesting its first stage has so few programs that they are
    learnt by heart, and little is learnt of longer ones meanwhile.
    """
    focus: FewOrNone = 40
    """Epochs in which training turns to what is hard; 0: the curriculum alone.

    The share of programs of the full difficulty, whatever the curriculum draws, rises from none to
    four fifths: sums of two digits are learnt from a mix of lengths; then most of what is left to
    learn is in the longest programs, of which the mix has one in ``length``. Of programs that do
    one thing, and it is to print a value or to choose one, nine in ten are left out in the end:
    they are a third of all, and are solved early.
    """
    is_scrambled: bool = False
    """Programs and results in a secret alphabet: the control that characters mean nothing."""
    programs: Many = 50_000
    """New programs in every epoch."""
    batch_tokens: Many = 2048
    """Characters in a batch, padding included; some sixty programs.

    In the same time small batches learn far more than large ones, whose steps are few.
    """
    d_embed: Width = 64
    """Width of a character's embedding."""
    d_hidden: Width = 256
    """Width of a layer."""
    n_layers: Few = 1
    """How many layers there are; the paper has two, which learn less in the same time."""
    dropout: BelowOne = 0.0
    """Between layers; new programs at every step leave nothing to overfit."""
    n_valid: Many = 2_000
    """Programs to choose the best weights by, and to see whether learning makes progress."""
    n_test: Many = 5_000
    """Programs to report on."""
    training: TrainConfig = TRAINING
    """How it is trained."""


RECIPES = (
    Recipe(
        name="execute",
        about="Reads a short Python program and writes what it prints, character by character.",
        system="program_executor",
        task="programs",
        metric="exact",
        at_least=60.0,
        beside={"characters": 90.0, "exact_loop": None, "exact_product": None, "exact_sum": None},
        source="Zaremba and Sutskever, 2014, https://arxiv.org/abs/1410.4615",
        note="Exact is without help; the paper reports characters that are right after the right "
        "ones before them, as curves only. A loop adds a number up to 12 times.",
        minutes=43.0,
        settings=ExecuteSettings(),
        build=Later("executing.execute_job", takes=1),
        restore=Later("executing.make_model", takes=1),
        evaluate=Later("executing.evaluate_executor", takes=1),
        trace=Later("executing.trace_program"),
        translate=Later("executing.run_programs"),
    ),
)
