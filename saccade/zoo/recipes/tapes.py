"""Watching a machine with a memory: its tape, from what a user names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.models.ntm import Taped
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.taping import bit_batch, taped, wrong_bits
from saccade.zoo.tasks.memory_tasks import BitBatch, as_copy, repeat_copy_batch

if TYPE_CHECKING:
    from saccade.zoo.recipes.machines import MachineSettings

SHOWN_SEED = 1_000_003  # neither that of a training nor that of a test
SHOWN = 0.02  # a slot with less weight than this throughout is left out of a picture
FORMS = {
    "copy": "a length, or vectors of bits",
    "repeat-copy": "a length, an x, and how often",
    "recall": "how many items, 2 or more",
    "sort": "the number of a sequence, 1 or more",
}


class HeadWeights(NamedTuple):
    """One sequence: a view for each head, those that write first."""

    weights: Float[Tensor, "view step slot"]
    views: tuple[str, ...]


def trace_machine(run: OpenRun, text: str) -> list[Trace]:
    """Where each head is at each step, over the slots that any of them ever comes to."""
    batch = given_batch(run.settings, text)
    tape = taped(run.model, batch.inputs, run.settings.n_slots_tested)
    weights, views = head_weights(tape)
    is_shown = (weights > SHOWN).any(0).any(0)  # [slot]
    slots = is_shown.nonzero()[:, 0]
    wrong = int(wrong_bits(tape.logits, batch).sum())
    return [
        Trace(
            kind="tape",
            steps=_labels(batch, tape, run.settings.d_bits),
            memory=tuple(map(str, slots.tolist())),
            weights=weights[:, :, slots],
            views=views,
            title=f"Where the heads are on the tape; {wrong} bits of the answer are wrong",
            meta={"wrong_bits": wrong},
        )
    ]


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
    """The bits that are shown, or an arrow and the bits that are said; else it is a mark."""
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
    """What the user has named: a length, or for copying the bits themselves."""
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
        return repeat_copy_batch(
            0,
            lengths=(length, length),
            repeats=(int(numbers[1]), int(numbers[1])),
            batch=1,
            seed=SHOWN_SEED,
            d_bits=settings.d_bits,
        )
    if settings.task == "sort":
        return bit_batch(settings, length, batch=1, seed=SHOWN_SEED)
    return bit_batch(settings, 0, batch=1, seed=SHOWN_SEED, length=length)
