"""Sorting by a memory that is a tree: the least key is found by a walk down from the root."""

from __future__ import annotations

from dataclasses import dataclass

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Batch, Fews, Many, Span, TrainConfig, Width

# Equal keys must be told from neighbouring ones: after 3,000 steps Adam, at half this rate, says
# 87 % of the items right, Muon 99 %.
TRAINING = TrainConfig(
    steps=12_000,
    minutes=50.0,
    optimiser="muon",
    learning_rate=0.01,
    clip=1.0,
    schedule="linear",
    warmup=200,
    validate_steps=500,
)


@dataclass(frozen=True, kw_only=True)
class HamSettings:
    """How large the memory is, and how many items are sorted."""

    d_bits: Width = 5
    """Bits of a key, and of a value."""
    lengths: Span = (1, 16)
    """The fewest and the most items in training."""
    tested: Fews = (16, 32)
    """Numbers of items to report on; the first is that of the recipe's figure."""
    d_node: Width = 32
    """Numbers that a node of the tree holds."""
    d_hidden: Width = 32
    """Units of the controller."""
    batch: Batch = 200
    """Sequences in a batch."""
    n_valid: Many = 200
    """Sequences to choose the best weights by."""
    n_test: Many = 1000
    """Sequences to report on, of each length."""
    training: TrainConfig = TRAINING
    """How it is trained."""


RECIPES = (
    Recipe(
        name="ham-sort",
        about="A memory that is a binary tree learns to sort, finding each item in log n turns.",
        system="hierarchical_attentive_memory",
        task="sorting",
        metric="items",
        at_least=99.0,
        source="https://arxiv.org/abs/1602.03218, section 4.2",
        note="Per cent of items said right, key and value, at their place; in each step one leaf "
        "is read. The paper sorts 32 items, and is nearly without error.",
        minutes=15.0,
        settings=HamSettings(),
        build=Later("tree_sorting.ham_job", takes=1),
        restore=Later("tree_sorting.ham_model", takes=1),
        evaluate=Later("tree_sorting.evaluate_ham", takes=1),
        trace=Later("tree_sorting.trace_ham"),
        gallery=("19 4 30 11 7 25 2 16",),
    ),
)
