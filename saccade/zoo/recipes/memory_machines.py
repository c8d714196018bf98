"""Recipes `ntm-*`, `dnc-*`, `sam-*`, `lstm-copy`: external memories on tasks of random bits.

- Neural Turing Machine: Graves et al., 2014 (https://arxiv.org/abs/1410.5401); its tasks copy,
  repeat-copy, recall and sort are those of section 4.
- Differentiable Neural Computer: Graves et al., 2016 (https://doi.org/10.1038/nature20101).
- Sparse access memory: Rae et al., 2016 (https://arxiv.org/abs/1610.09027).

An LSTM with as many weights as the Neural Turing Machine is the control of `ntm-copy`. That paper
shows curves and plots; the notes say where our sizes differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.models.dnc import Dnc
from saccade.zoo.models.ntm import Ntm, Taped
from saccade.zoo.models.sequence_reader import SequenceReader
from saccade.zoo.models.sparse_access_memory import SparseAccessMemory
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.memory_tasks import (
    BitBatch,
    as_copy,
    copy_batch,
    priority_sort_batch,
    recall_batch,
    repeat_copy_batch,
)
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import (
    Batch,
    Few,
    FewOrNone,
    Fews,
    Many,
    Span,
    TrainConfig,
    Width,
)

GRAVES = "https://arxiv.org/abs/1410.5401"
# Far from the seeds of training runs, which are small.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002
SHOWN_SEED = 1_000_003  # a seed of neither training nor test
EPOCH = 1000  # batches; the data have no end
AT_ONCE = 100  # sequences in a batch, in evaluation
SHOWN = 0.02  # a slot whose weight is always below this is left out of a plot

System = Literal["ntm", "dnc", "sam", "lstm"]
BitTask = Literal["copy", "repeat-copy", "recall", "sort"]
Say = Callable[[Float[Tensor, "batch pos d_input"]], Float[Tensor, "batch pos d_bits"]]
FORMS: Mapping[BitTask, str] = {
    "copy": "a length, or vectors of bits",
    "repeat-copy": "a length, an x, and how often",
    "recall": "how many items, 2 or more",
    "sort": "the number of a sequence, 1 or more",
}
"""The inputs of `trace` for each task."""

TRAINING = TrainConfig(
    steps=10_000,
    minutes=40.0,
    learning_rate=3e-3,
    clip=10.0,
    schedule="linear",
    validate_steps=250,
)
SHORTER = replace(TRAINING, steps=5000)
# The sparse machine recalls 77 % of sequences after 10,000 steps with Adam, and 92 % after 1,500
# with Muon.
BY_MUON = replace(TRAINING, steps=4000, optimiser="muon", clip=1.0)
LONGER_BY_MUON = replace(BY_MUON, steps=8000)


@dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """The system, its sizes and its task."""

    system: System = "ntm"
    """ntm, dnc, sam (sparse access), or lstm, which has only its state."""
    task: BitTask = "copy"
    """copy, repeat-copy, recall or sort."""
    d_bits: Width = 8
    """Bits of a vector."""
    lengths: Span = (1, 20)
    """Minimum and maximum sequence length in training; recall: items, sort: vectors."""
    repeats: Span = (1, 10)
    """repeat-copy: minimum and maximum number of repeats."""
    n_wanted: FewOrNone = 0
    """sort: number of target vectors, from the highest priority on."""
    tested: Fews = (20, 40, 80)
    """Test lengths; the first is that of the recipe's metric and of the validation."""
    d_hidden: Width = 100
    """Units of the controller."""
    n_slots: Width = 32
    """Slots of the memory in training."""
    n_slots_tested: Width = 128
    """Slots of the memory in evaluation: longer sequences need more."""
    d_slot: Width = 20
    """Dimension of a slot."""
    n_reads: Few = 1
    """Read heads."""
    n_writes: Few = 1
    """Write heads; dnc and sam have one."""
    batch: Batch = 32
    """Sequences in a batch."""
    n_valid: Many = 200
    """Validation sequences."""
    n_test: Many = 1000
    """Test sequences of each length."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class BitRecipe(Recipe):
    """A system on a task of bits: new sequences at every step, tested on several lengths."""

    task: str = "bit_sequences"
    metric: str = "wrong_bits"
    is_better: Literal["less", "more"] = "less"

    def build(self, settings: MachineSettings, data: Path | None) -> Job:
        """New sequences at every step; the best weights by the loss at the first length tested."""
        del data  # sequences are generated, not read
        valid = bit_batch(
            settings, 0, batch=settings.n_valid, seed=VALID_SEED, length=settings.tested[0]
        )

        def batches(epoch: int) -> Iterator[BitBatch]:
            seed = settings.training.seed
            for step in range(epoch * EPOCH, (epoch + 1) * EPOCH):
                yield bit_batch(settings, step, batch=settings.batch, seed=seed)

        return Job(
            model=self.restore(settings, {}),
            batches=batches,
            loss=lambda model, batch: LossOut(
                bit_loss(model(batch.inputs), batch), n=len(batch.inputs)
            ),
            validate=lambda model: _bit_metrics(model, to_device_of(model, valid)),
            score="nats",
            is_better="less",
            config=settings.training,
        )

    def restore(self, settings: MachineSettings, kept: Mapping[str, Any]) -> nn.Module:
        """The untrained machine."""
        del kept
        example = bit_batch(settings, 0, batch=1, seed=0)
        d_input, d_output = example.inputs.shape[2], example.targets.shape[2]
        if settings.system == "lstm":
            return SequenceReader(d_input=d_input, d_hidden=settings.d_hidden, d_output=d_output)
        sizes = {
            "d_hidden": settings.d_hidden,
            "n_slots": settings.n_slots,
            "d_slot": settings.d_slot,
            "n_reads": settings.n_reads,
        }
        if settings.system == "ntm":
            n_writes = settings.n_writes
            return Ntm(d_input=d_input, d_output=d_output, n_writes=n_writes, **sizes)
        kind = Dnc if settings.system == "dnc" else SparseAccessMemory
        return kind(d_input=d_input, d_output=d_output, **sizes)

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """On held-out sequences; ``wrong_bits`` and ``right`` are at the first length."""
        del data
        settings, model, metrics = run.settings, run.model, {}

        def say(inputs: Tensor) -> Tensor:
            if isinstance(model, SequenceReader):
                return model(inputs)
            return _taped(model, inputs, settings.n_slots_tested).logits

        for length in settings.tested:
            test = bit_batch(settings, length, batch=settings.n_test, seed=TEST_SEED, length=length)
            found = _bit_metrics(say, to_device_of(model, test))
            for name in ("wrong_bits", "right"):
                metrics.setdefault(name, found[name])
                metrics[f"{name}_{length}"] = found[name]
        return metrics


@dataclass(frozen=True, kw_only=True)
class MachineRecipe(BitRecipe):
    """A system with an external memory: traces show the weights of its heads."""

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The weights of each head at each step, over all slots that any head uses."""
        del data
        batch = given_batch(run.settings, text)
        inputs = to_device_of(run.model, batch.inputs)
        found = _taped(run.model, inputs, run.settings.n_slots_tested)
        tape = Taped(*(part.cpu() for part in found))
        weights, views = head_weights(tape)
        is_shown = (weights > SHOWN).any(0).any(0)  # [slot]
        slots = is_shown.nonzero()[:, 0]
        wrong = int(_wrong_bits(tape.logits, batch).sum())
        return [
            Trace(
                kind="tape",
                steps=_labels(batch, tape, run.settings.d_bits),
                memory=tuple(map(str, slots.tolist())),
                weights=weights[:, :, slots],
                views=views,
                title=f"Weights of the heads over the memory; {wrong} bits of the answer are wrong",
                meta={"wrong_bits": wrong},
            )
        ]


def bit_batch(
    settings: MachineSettings, step: int, *, batch: int, seed: int, length: int | None = None
) -> BitBatch:
    """A batch of the task; of one length if given, and then with the maximum number of repeats."""
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
    """Loss in nats a bit, over the target bits."""
    asked = batch.is_asked
    return functional.binary_cross_entropy_with_logits(logits[asked], batch.targets[asked])


def _bit_metrics(say: Say, batch: BitBatch) -> dict[str, float]:
    """Loss in nats a bit, wrong bits a sequence, and per cent of sequences without a wrong bit."""
    logits = torch.cat([say(inputs) for inputs in batch.inputs.split(AT_ONCE)])
    wrong = _wrong_bits(logits, batch)
    return {
        "nats": bit_loss(logits, batch).item(),
        "wrong_bits": wrong.float().mean().item(),
        "right": 100 * (wrong == 0).float().mean().item(),
    }


def _wrong_bits(
    logits: Float[Tensor, "batch pos d_bits"], batch: BitBatch
) -> Int[Tensor, " batch"]:
    """Of each sequence."""
    is_wrong = (logits > 0) != (batch.targets > 0)
    return (is_wrong & batch.is_asked[:, :, None]).sum((1, 2))


def _taped(model: nn.Module, inputs: Float[Tensor, "batch pos d_input"], n_slots: int) -> Taped:
    """The outputs over a whole sequence, with this number of slots."""
    assert isinstance(model, Ntm | Dnc | SparseAccessMemory), type(model).__name__
    return model.run(inputs, n_slots)


class HeadWeights(NamedTuple):
    """One sequence: a view for each head, those that write first."""

    weights: Float[Tensor, "view step slot"]
    views: tuple[str, ...]


def head_weights(tape: Taped) -> HeadWeights:
    """The weights of all heads over the first sequence of a batch."""
    kinds = {"write": tape.writes[0], "read": tape.reads[0]}  # [pos, head, slot] each
    views = tuple(
        f"{name} {head + 1}" if weights.shape[1] > 1 else name
        for name, weights in kinds.items()
        for head in range(weights.shape[1])
    )
    return HeadWeights(torch.cat(list(kinds.values()), dim=1).transpose(0, 1), views)


def _labels(batch: BitBatch, tape: Taped, d_bits: int) -> tuple[str, ...]:
    """The input bits, or an arrow and the output bits; otherwise a delimiter."""
    said = (tape.logits[0] > 0).int().tolist()
    labels = []
    for shown, bits, is_asked in zip(batch.inputs[0], said, batch.is_asked[0], strict=True):
        if is_asked:
            labels.append("> " + "".join(map(str, bits)))
        elif (shown[d_bits:] == 1).any() and not shown[:d_bits].any():
            labels.append("mark")
        else:
            labels.append("".join(str(int(bit)) for bit in shown[:d_bits]))
    return tuple(labels)


def given_batch(settings: MachineSettings, text: str) -> BitBatch:
    """The sequence of a user's input: a length, or for copy the bits themselves."""
    words = text.split()
    is_bits = all(set(word) <= {"0", "1"} and len(word) == settings.d_bits for word in words)
    if settings.task == "copy" and words and is_bits:
        vectors = torch.tensor([[[float(bit) for bit in word] for word in words]])
        return as_copy(vectors)
    numbers = text.strip().split("x")
    expected = 2 if settings.task == "repeat-copy" else 1
    least = 2 if settings.task == "recall" else 1
    if len(numbers) != expected or not all(n.isdigit() and int(n) >= least for n in numbers):
        raise UsageError(
            f"expected {FORMS[settings.task]}, got {text!r}",
            hint="for example 12; to copy, also '10110001 01100110'; to repeat, 5x3",
        )
    length = int(numbers[0])
    if settings.task == "repeat-copy":
        times = int(numbers[1])
        settings = replace(settings, repeats=(times, times))
    elif settings.task == "sort":
        return bit_batch(settings, length, batch=1, seed=SHOWN_SEED)
    return bit_batch(settings, 0, batch=1, seed=SHOWN_SEED, length=length)


RECALL = MachineSettings(
    task="recall", d_bits=6, lengths=(2, 6), tested=(6,), n_slots_tested=32, training=SHORTER
)
RECIPES = (
    MachineRecipe(
        name="ntm-copy",
        about="A Neural Turing Machine learns to copy up to 20 vectors of bits, and copies 80.",
        system="ntm",
        settings=MachineSettings(training=BY_MUON),
        source=f"{GRAVES}, section 4.1",
        minutes=3.0,
        target=0.01,
        other_metrics={"wrong_bits_40": 0.1, "wrong_bits_80": 1.0},
        note="Wrong bits a sequence of 20, 40 and 80. The paper shows curves and plots: solved, "
        "and nearly so at several times the length. It is trained with 32 slots and tested with "
        "the paper's 128.",
        gallery=("20",),
    ),
    BitRecipe(
        name="lstm-copy",
        about="The control: an LSTM with as many weights, on the same sequences.",
        system="sequence_reader",
        settings=MachineSettings(system="lstm", d_hidden=119, training=LONGER_BY_MUON),
        source=f"{GRAVES}, section 4.1",
        minutes=2.0,
        other_metrics={"wrong_bits_40": None, "wrong_bits_80": None},
        note="It is expected to be far behind: chance has 80, 160 and 320 wrong bits.",
    ),
    MachineRecipe(
        name="ntm-repeat-copy",
        about="A Neural Turing Machine repeats its input a given number of times, and then stops.",
        system="ntm",
        settings=MachineSettings(
            task="repeat-copy",
            lengths=(1, 10),
            tested=(10, 20),
            n_slots=16,
            n_slots_tested=32,
            n_reads=2,
            training=LONGER_BY_MUON,
        ),
        source=f"{GRAVES}, section 4.2",
        minutes=10.0,
        note="Tested with ten repeats; the paper shows curves and plots.",
        gallery=("5x4",),
    ),
    MachineRecipe(
        name="ntm-recall",
        about="A Neural Turing Machine gets an item as query, and recalls the one after it.",
        system="ntm",
        settings=replace(RECALL, tested=(6, 12), n_slots_tested=64),
        source=f"{GRAVES}, section 4.3",
        minutes=5.0,
        metric="right",
        is_better="more",
        note="Per cent of sequences without a wrong bit; an item is three vectors of six bits. The "
        "paper is nearly perfect up to 12 items, with a controller that is no LSTM.",
        gallery=("6",),
    ),
    MachineRecipe(
        name="ntm-sort",
        about="A Neural Turing Machine sorts vectors by their priorities.",
        system="ntm",
        settings=MachineSettings(
            task="sort",
            lengths=(8, 8),
            n_wanted=6,
            tested=(8,),
            n_slots_tested=32,
            n_reads=2,
            n_writes=2,
            training=replace(TRAINING, steps=20_000),
        ),
        source=f"{GRAVES}, section 4.5",
        minutes=12.0,
        note="Eight vectors, of which six are targets; the paper has 20 and 16, with 8 heads of "
        "each kind and a million sequences.",
        gallery=("1",),
    ),
    MachineRecipe(
        name="dnc-copy",
        about="A Differentiable Neural Computer allocates memory to copy its input.",
        system="dnc",
        settings=MachineSettings(system="dnc", tested=(20,), n_slots_tested=32),
        source="https://doi.org/10.1038/nature20101, extended data figure 1",
        minutes=15.0,
        gallery=("10",),
    ),
    MachineRecipe(
        name="dnc-recall",
        about="A Differentiable Neural Computer gets an item as query, and recalls the next one.",
        system="dnc",
        settings=replace(RECALL, system="dnc"),
        source=f"{GRAVES}, section 4.3, which the paper reuses",
        minutes=10.0,
        metric="right",
        is_better="more",
        target=99.0,
        note="Per cent of sequences without a wrong bit; three vectors of six bits an item.",
        gallery=("6",),
    ),
    MachineRecipe(
        name="sam-recall",
        about="A memory of 4096 slots, five of them accessed a step, recalls the next item.",
        system="sparse_access_memory",
        settings=replace(RECALL, system="sam", n_slots=4096, n_slots_tested=4096, training=BY_MUON),
        source="https://arxiv.org/abs/1610.09027, section 4.2",
        minutes=7.0,
        metric="right",
        is_better="more",
        note="Per cent of sequences without a wrong bit; three vectors of six bits an item.",
        gallery=("6",),
    ),
)
