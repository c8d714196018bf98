"""Recipe `ham-sort`: a memory that is a tree; a descent from the root finds the smallest key.

Hierarchical attentive memory: Andrychowicz and Kurach, 2016 (https://arxiv.org/abs/1602.03218),
section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.models.hierarchical_attentive_memory import HierarchicalAttentiveMemory
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.memory_tasks import SortBatch, as_sorting, sort_batch
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import Batch, Fews, Many, Span, TrainConfig, Width

# Far from the seeds of training runs, which are small.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002
EPOCH = 1000  # batches in an epoch; generated data have no end
# Equal keys must be distinguished from neighbouring ones: after 3,000 steps Adam, at half this
# rate, has 87 % of the items right, Muon 99 %.
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
    """The size of the memory, and the number of items."""

    d_bits: Width = 5
    """Bits of a key, and of a value."""
    lengths: Span = (1, 16)
    """Minimum and maximum number of items in training."""
    tested: Fews = (16, 32)
    """Numbers of items in the test; the first is that of the recipe's metric."""
    d_node: Width = 32
    """Dimension of a node of the tree."""
    d_hidden: Width = 32
    """Units of the controller."""
    batch: Batch = 200
    """Sequences in a batch."""
    n_valid: Many = 200
    """Validation sequences."""
    n_test: Many = 1000
    """Test sequences of each length."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class HamRecipe(Recipe):
    """Hierarchical attentive memory sorts pairs of a key and a value."""

    system: str = "hierarchical_attentive_memory"
    task: str = "sorting"
    metric: str = "items"

    def build(self, settings: HamSettings, data: Path | None) -> Job:
        """New items at every step; the best weights by hard search at the first length tested."""
        del data  # items are generated, not read
        longest = (settings.tested[0], settings.tested[0])
        valid = sort_batch(
            0, lengths=longest, batch=settings.n_valid, seed=VALID_SEED, d_bits=settings.d_bits
        )

        def batches(epoch: int) -> Iterator[SortBatch]:
            seed, lengths = settings.training.seed, settings.lengths
            for step in range(epoch * EPOCH, (epoch + 1) * EPOCH):
                yield sort_batch(
                    step, lengths=lengths, batch=settings.batch, seed=seed, d_bits=settings.d_bits
                )

        def validate(model: nn.Module) -> dict[str, float]:
            batch = to_device_of(model, valid)
            return {"nats": _sort_loss(model, batch).item(), **_metrics(model, batch)}

        return Job(
            model=self.restore(settings, {}),
            batches=batches,
            loss=lambda model, batch: LossOut(_sort_loss(model, batch), n=len(batch.items)),
            validate=validate,
            score="nats",
            is_better="less",
            config=settings.training,
        )

    def restore(
        self, settings: HamSettings, kept: Mapping[str, Any]
    ) -> HierarchicalAttentiveMemory:
        """The untrained model."""
        del kept
        return HierarchicalAttentiveMemory(
            d_item=2 * settings.d_bits + 1,
            d_output=2 * settings.d_bits,
            d_node=settings.d_node,
            d_hidden=settings.d_hidden,
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """On held-out items, by hard search; ``items`` is at the first length."""
        del data
        settings, found = run.settings, {}
        for length in settings.tested:
            test = sort_batch(
                length,
                lengths=(length, length),
                batch=settings.n_test,
                seed=TEST_SEED,
                d_bits=settings.d_bits,
            )
            for name, value in _metrics(run.model, to_device_of(run.model, test)).items():
                found.setdefault(name, value)
                found[f"{name}_{length}"] = value
        return found

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The item that each step finds, and the predicted key."""
        del data
        d_bits, model = run.settings.d_bits, run.model
        assert isinstance(model, HierarchicalAttentiveMemory), type(model).__name__
        words, most = text.split(), 2**d_bits - 1
        if not words or not all(word.isdigit() and int(word) <= most for word in words):
            raise UsageError(
                f"expected keys from 0 to {most} with spaces between them, got {text!r}",
                hint="for example '19 4 30 11 7 25 2 16'",
            )
        keys = torch.tensor([[int(word) for word in words]])
        # The values show the input order of equal keys.
        batch = as_sorting(keys, torch.arange(len(words))[None] % (most + 1), d_bits=d_bits)
        searched = model.run(to_device_of(model, batch.items), is_hard=False)
        places = 2 ** torch.arange(d_bits - 1, -1, -1)
        said = ((searched.logits[0, :, :d_bits].cpu() > 0) * places).sum(-1)
        return [
            Trace(
                kind="tree-search",
                steps=tuple(map(str, said.tolist())),
                memory=tuple(words),
                weights=searched.weights[0, :, : len(words)].cpu(),
                title="The item that the descent of the tree finds, for each output key",
            )
        ]


def _sort_loss(model: nn.Module, batch: SortBatch) -> Float[Tensor, ""]:
    """Loss in nats a bit."""
    return functional.binary_cross_entropy_with_logits(model(batch.items), batch.targets)


def _metrics(model: nn.Module, batch: SortBatch) -> dict[str, float]:
    """Per cent of items, and of whole sequences, without a wrong bit."""
    is_right = ((model(batch.items) > 0) == (batch.targets > 0)).all(-1)  # [batch, item]
    return {
        "items": 100 * is_right.float().mean().item(),
        "sequences": 100 * is_right.all(1).float().mean().item(),
    }


RECIPES = (
    HamRecipe(
        name="ham-sort",
        about="A memory that is a binary tree learns to sort, finding each item in log n steps.",
        target=99.0,
        source="https://arxiv.org/abs/1602.03218, section 4.2",
        note="Per cent of items that are right, key and value, at their position; in each step "
        "one leaf is read. The paper sorts 32 items almost without error.",
        minutes=15.0,
        settings=HamSettings(),
        gallery=("19 4 30 11 7 25 2 16",),
    ),
)
