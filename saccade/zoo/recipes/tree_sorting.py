"""Training, judging and watching hierarchical attentive memory on sorting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.models.hierarchical_attentive_memory import HierarchicalAttentiveMemory
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.tasks.memory_tasks import SortBatch, as_sorting, sort_batch
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.ham_sort import HamSettings

# Far from every step of a training, whose seed is small.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002
EPOCH = 1000  # batches; the data have no end


def ham_job(settings: HamSettings) -> Job:
    """New items at every step; the best weights by hard search at the first length tested."""
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

    return Job(
        model=ham_model(settings),
        batches=batches,
        loss=lambda model, batch: LossOut(sort_loss(model, batch), n=len(batch.items)),
        validate=lambda model: {"nats": sort_loss(model, valid).item(), **figures(model, valid)},
        score="nats",
        is_better="less",
        config=settings.training,
    )


def ham_model(settings: HamSettings) -> HierarchicalAttentiveMemory:
    """The untrained model."""
    return HierarchicalAttentiveMemory(
        d_item=2 * settings.d_bits + 1,
        d_output=2 * settings.d_bits,
        d_node=settings.d_node,
        d_hidden=settings.d_hidden,
    )


def sort_loss(model: nn.Module, batch: SortBatch) -> Float[Tensor, ""]:
    """Nats a bit."""
    return functional.binary_cross_entropy_with_logits(model(batch.items), batch.targets)


def figures(model: nn.Module, batch: SortBatch) -> dict[str, float]:
    """Per cent of items, and of whole sequences, that are said without a wrong bit."""
    is_right = ((model(batch.items) > 0) == (batch.targets > 0)).all(-1)  # [batch, item]
    return {
        "items": 100 * is_right.float().mean().item(),
        "sequences": 100 * is_right.all(1).float().mean().item(),
    }


def evaluate_ham(run: OpenRun) -> dict[str, float]:
    """On items that no step has seen, by hard search; ``items`` is at the first length."""
    settings, found = run.settings, {}
    for length in settings.tested:
        test = sort_batch(
            length,
            lengths=(length, length),
            batch=settings.n_test,
            seed=TEST_SEED,
            d_bits=settings.d_bits,
        )
        for name, value in figures(run.model, test).items():
            found.setdefault(name, value)
            found[f"{name}_{length}"] = value
    return found


def trace_ham(run: OpenRun, text: str) -> list[Trace]:
    """Which item each step finds, and the key it says."""
    settings, model = run.settings, run.model
    assert isinstance(model, HierarchicalAttentiveMemory), type(model).__name__
    words, most = text.split(), 2**settings.d_bits - 1
    if not words or not all(word.isdigit() and int(word) <= most for word in words):
        raise UsageError(
            f"expected keys from 0 to {most} with spaces between them, got {text!r}",
            hint="for example '19 4 30 11 7 25 2 16'",
        )
    keys = torch.tensor([[int(word) for word in words]])
    # The values say in which order equal keys came.
    batch = as_sorting(keys, torch.arange(len(words))[None] % (most + 1), d_bits=settings.d_bits)
    searched = model.run(batch.items, is_hard=False)
    places = 2 ** torch.arange(settings.d_bits - 1, -1, -1)
    said = ((searched.logits[0, :, : settings.d_bits] > 0) * places).sum(-1)
    return [
        Trace(
            kind="tree-search",
            steps=tuple(map(str, said.tolist())),
            memory=tuple(words),
            weights=searched.weights[0, :, : len(words)],
            title="Which item the walk down the tree leads to, for each key that is said",
        )
    ]
