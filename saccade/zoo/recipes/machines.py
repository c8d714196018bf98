"""Machines with a memory on random bits: copy, repeat, recall, sort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, Few, FewOrNone, Fews, Many, Span, TrainConfig, Width

System = Literal["ntm", "dnc", "sam", "lstm"]
BitTask = Literal["copy", "repeat-copy", "recall", "sort"]
TRAINING = TrainConfig(
    steps=10_000,
    minutes=40.0,
    learning_rate=3e-3,
    clip=10.0,
    schedule="linear",
    validate_steps=250,
)
SHORTER = replace(TRAINING, steps=5000)
# The sparse machine recalls 77 % of sequences after 10,000 steps by Adam, and 92 % after 1,500 by
# Muon.
BY_MUON = replace(TRAINING, steps=4000, optimiser="muon", clip=1.0)
LONGER_BY_MUON = replace(BY_MUON, steps=8000)


@dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """Which machine, how large, and what it is to do with bits."""

    system: System = "ntm"
    """ntm, dnc, sam (sparse access), or lstm, which has no memory but its state."""
    task: BitTask = "copy"
    """copy, repeat-copy, recall or sort."""
    d_bits: Width = 8
    """Bits of a vector."""
    lengths: Span = (1, 20)
    """The shortest and the longest sequence in training; of recall: items, of sort: vectors."""
    repeats: Span = (1, 10)
    """repeat-copy: how often at least and at most."""
    n_wanted: FewOrNone = 0
    """sort: how many vectors are wanted, from the highest priority on."""
    tested: Fews = (20, 40, 80)
    """Lengths to report on; the first is that of the recipe's figure and of the validation."""
    d_hidden: Width = 100
    """Units of the controller."""
    n_slots: Width = 32
    """Slots of the memory in training."""
    n_slots_tested: Width = 128
    """Slots of the memory afterwards: longer sequences need more."""
    d_slot: Width = 20
    """Numbers in a slot."""
    n_reads: Few = 1
    """Read heads."""
    n_writes: Few = 1
    """Write heads; dnc and sam have one."""
    batch: Batch = 32
    """Sequences in a batch."""
    n_valid: Many = 200
    """Sequences to choose the best weights by."""
    n_test: Many = 1000
    """Sequences to report on, of each length."""
    training: TrainConfig = TRAINING
    """How it is trained."""


GRAVES = "https://arxiv.org/abs/1410.5401"


def _recipe(  # noqa: PLR0913  these are a recipe's own fields
    settings: MachineSettings,
    *,
    about: str,
    source: str,
    minutes: float,
    metric: str,
    at_least: float | None = None,
    beside: Mapping[str, float | None] | None = None,
    note: str = "",
    gallery: tuple[str, ...] = (),
) -> Recipe:
    systems = {"ntm": "ntm", "dnc": "dnc", "sam": "sparse_access_memory", "lstm": "sequence_reader"}
    return Recipe(
        name=f"{settings.system}-{settings.task}",
        about=about,
        system=systems[settings.system],
        task="bit_sequences",
        metric=metric,
        is_better="less" if metric.startswith("wrong") else "more",
        at_least=at_least,
        beside=beside or {},
        source=source,
        note=note,
        minutes=minutes,
        settings=settings,
        build=Later("taping.machine_job", takes=1),
        restore=Later("taping.machine_model", takes=1),
        evaluate=Later("taping.evaluate_machine", takes=1),
        trace=None if settings.system == "lstm" else Later("tapes.trace_machine"),
        gallery=gallery,
    )


RECIPES = (
    _recipe(
        MachineSettings(training=BY_MUON),
        about="A Neural Turing Machine learns to copy up to 20 vectors of bits, and copies 80.",
        source=f"{GRAVES}, section 4.1",
        minutes=3.0,
        metric="wrong_bits",
        at_least=0.01,
        beside={"wrong_bits_40": 0.1, "wrong_bits_80": 1.0},
        note="Wrong bits a sequence of 20, 40 and 80. The paper shows curves and pictures: solved, "
        "and nearly so at several times the length. It learns with 32 slots and is tested with "
        "the paper's 128.",
        gallery=("20",),
    ),
    _recipe(
        MachineSettings(system="lstm", d_hidden=119, training=LONGER_BY_MUON),
        about="The control: an LSTM with as many weights, on the same sequences.",
        source=f"{GRAVES}, section 4.1",
        minutes=2.0,
        metric="wrong_bits",
        beside={"wrong_bits_40": None, "wrong_bits_80": None},
        note="It is meant to be far behind: guessing has 80, 160 and 320 wrong bits.",
    ),
    _recipe(
        MachineSettings(
            task="repeat-copy",
            lengths=(1, 10),
            tested=(10, 20),
            n_slots=16,
            n_slots_tested=32,
            n_reads=2,
            training=LONGER_BY_MUON,
        ),
        about="A Neural Turing Machine says what it heard as often as it is told, and then stops.",
        source=f"{GRAVES}, section 4.2",
        minutes=10.0,
        metric="wrong_bits",
        note="Tested with ten repeats; the paper shows curves and pictures.",
        gallery=("5x4",),
    ),
    _recipe(
        MachineSettings(
            task="recall",
            d_bits=6,
            lengths=(2, 6),
            tested=(6, 12),
            n_slots_tested=64,
            training=SHORTER,
        ),
        about="A Neural Turing Machine is shown an item again, and says the one that followed it.",
        source=f"{GRAVES}, section 4.3",
        minutes=5.0,
        metric="right",
        note="Per cent of sequences without a wrong bit; an item is three vectors of six bits. The "
        "paper is nearly perfect up to 12 items, with a controller that is no LSTM.",
        gallery=("6",),
    ),
    _recipe(
        MachineSettings(
            task="sort",
            lengths=(8, 8),
            n_wanted=6,
            tested=(8,),
            n_slots_tested=32,
            n_reads=2,
            n_writes=2,
            training=replace(TRAINING, steps=20_000),
        ),
        about="A Neural Turing Machine is shown vectors with priorities, and says them in order.",
        source=f"{GRAVES}, section 4.5",
        minutes=12.0,
        metric="wrong_bits",
        note="Eight vectors of which six are wanted; the paper has 20 and 16, with 8 heads of each "
        "kind and a million sequences.",
        gallery=("1",),
    ),
    _recipe(
        MachineSettings(system="dnc", tested=(20,), n_slots_tested=32),
        about="A Differentiable Neural Computer finds room for what it is to copy.",
        source="https://doi.org/10.1038/nature20101, extended data figure 1",
        minutes=15.0,
        metric="wrong_bits",
        gallery=("10",),
    ),
    _recipe(
        MachineSettings(
            system="dnc",
            task="recall",
            d_bits=6,
            lengths=(2, 6),
            tested=(6,),
            n_slots_tested=32,
            training=SHORTER,
        ),
        about="A Differentiable Neural Computer is shown an item again, and says the next one.",
        source=f"{GRAVES}, section 4.3, which the paper takes over",
        minutes=10.0,
        metric="right",
        at_least=99.0,
        note="Per cent of sequences without a wrong bit; three vectors of six bits an item.",
        gallery=("6",),
    ),
    _recipe(
        MachineSettings(
            system="sam",
            task="recall",
            d_bits=6,
            lengths=(2, 6),
            tested=(6,),
            n_slots=4096,
            n_slots_tested=4096,
            training=BY_MUON,
        ),
        about="A machine with 4096 slots, of which it touches five a step, says the next item.",
        source="https://arxiv.org/abs/1610.09027, section 4.2",
        minutes=7.0,
        metric="right",
        note="Per cent of sequences without a wrong bit; three vectors of six bits an item.",
        gallery=("6",),
    ),
)
