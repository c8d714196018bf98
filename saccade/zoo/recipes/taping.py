"""Training and judging machines with a memory on tasks of bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.models.dnc import Dnc
from saccade.zoo.models.ntm import Ntm, Taped
from saccade.zoo.models.sequence_reader import SequenceReader
from saccade.zoo.models.sparse_access_memory import SparseAccessMemory
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.tasks.memory_tasks import (
    BitBatch,
    copy_batch,
    priority_sort_batch,
    recall_batch,
    repeat_copy_batch,
)
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.machines import MachineSettings

# Far from every step of a training, whose seed is small.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002
EPOCH = 1000  # batches; the data have no end
AT_ONCE = 100  # sequences, where nothing is learnt

Say = Callable[[Float[Tensor, "batch pos d_input"]], Float[Tensor, "batch pos d_bits"]]


def machine_job(settings: MachineSettings) -> Job:
    """New sequences at every step; the best weights by the loss at the first length tested."""
    valid = bit_batch(
        settings, 0, batch=settings.n_valid, seed=VALID_SEED, length=settings.tested[0]
    )

    def batches(epoch: int) -> Iterator[BitBatch]:
        seed = settings.training.seed
        for step in range(epoch * EPOCH, (epoch + 1) * EPOCH):
            yield bit_batch(settings, step, batch=settings.batch, seed=seed)

    return Job(
        model=machine_model(settings),
        batches=batches,
        loss=lambda model, batch: LossOut(
            bit_loss(model(batch.inputs), batch), n=len(batch.inputs)
        ),
        validate=lambda model: bit_figures(model, valid),
        score="nats",
        is_better="less",
        config=settings.training,
    )


def machine_model(settings: MachineSettings) -> nn.Module:
    """The untrained machine."""
    example = bit_batch(settings, 0, batch=1, seed=0)
    d_input, d_output = example.inputs.shape[2], example.targets.shape[2]
    if settings.system == "lstm":
        return SequenceReader(d_input=d_input, d_hidden=settings.d_hidden, d_output=d_output)
    if settings.system == "ntm":
        return Ntm(
            d_input=d_input,
            d_output=d_output,
            d_hidden=settings.d_hidden,
            n_slots=settings.n_slots,
            d_slot=settings.d_slot,
            n_reads=settings.n_reads,
            n_writes=settings.n_writes,
        )
    kind = Dnc if settings.system == "dnc" else SparseAccessMemory
    return kind(
        d_input=d_input,
        d_output=d_output,
        d_hidden=settings.d_hidden,
        n_slots=settings.n_slots,
        d_slot=settings.d_slot,
        n_reads=settings.n_reads,
    )


def bit_batch(
    settings: MachineSettings, step: int, *, batch: int, seed: int, length: int | None = None
) -> BitBatch:
    """A batch of the task; of one length if told, and then with as many repeats as there may be."""
    lengths = settings.lengths if length is None else (length, length)
    if settings.task == "copy":
        return copy_batch(step, lengths=lengths, batch=batch, seed=seed, d_bits=settings.d_bits)
    if settings.task == "repeat-copy":
        most = settings.repeats[1]
        return repeat_copy_batch(
            step,
            lengths=lengths,
            repeats=settings.repeats if length is None else (most, most),
            batch=batch,
            seed=seed,
            d_bits=settings.d_bits,
        )
    if settings.task == "recall":
        return recall_batch(step, items=lengths, batch=batch, seed=seed, d_bits=settings.d_bits)
    return priority_sort_batch(
        step,
        n_shown=lengths[1],
        n_wanted=settings.n_wanted,
        batch=batch,
        seed=seed,
        d_bits=settings.d_bits,
    )


def bit_loss(logits: Float[Tensor, "batch pos d_bits"], batch: BitBatch) -> Float[Tensor, ""]:
    """Nats a bit, over the bits that are asked for."""
    asked = batch.is_asked
    return functional.binary_cross_entropy_with_logits(logits[asked], batch.targets[asked])


def bit_figures(say: Say, batch: BitBatch) -> dict[str, float]:
    """Nats a bit, wrong bits a sequence, and per cent of sequences without a wrong bit."""
    logits = torch.cat([say(inputs) for inputs in batch.inputs.split(AT_ONCE)])
    wrong = wrong_bits(logits, batch)
    return {
        "nats": bit_loss(logits, batch).item(),
        "wrong_bits": wrong.float().mean().item(),
        "right": 100 * (wrong == 0).float().mean().item(),
    }


def wrong_bits(logits: Float[Tensor, "batch pos d_bits"], batch: BitBatch) -> Int[Tensor, " batch"]:
    """Of each sequence."""
    is_wrong = (logits > 0) != (batch.targets > 0)
    return (is_wrong & batch.is_asked[:, :, None]).sum((1, 2))


def evaluate_machine(run: OpenRun) -> dict[str, float]:
    """On sequences that no step has seen; ``wrong_bits`` and ``right`` are at the first length."""
    settings, model, figures = run.settings, run.model, {}

    def say(inputs: Tensor) -> Tensor:
        if isinstance(model, SequenceReader):
            return model(inputs)
        return taped(model, inputs, settings.n_slots_tested).logits

    for length in settings.tested:
        test = bit_batch(settings, length, batch=settings.n_test, seed=TEST_SEED, length=length)
        found = bit_figures(say, test)
        for name in ("wrong_bits", "right"):
            figures.setdefault(name, found[name])
            figures[f"{name}_{length}"] = found[name]
    return figures


def taped(model: nn.Module, inputs: Float[Tensor, "batch pos d_input"], n_slots: int) -> Taped:
    """A machine's whole run, with so many slots."""
    assert isinstance(model, Ntm | Dnc | SparseAccessMemory), type(model).__name__
    return model.run(inputs, n_slots)
