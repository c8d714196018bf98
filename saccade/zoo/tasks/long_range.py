"""The adding problem and the copying problem: long-range dependencies in synthetic sequences."""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.zoo.tasks.datasets import generator_of

# The adding problem: two numbers of a long sequence are marked; what is their sum?

BASELINE = 1 / 6
"""The error of always predicting 1: the variance of the sum of two uniform numbers."""


class AddingBatch(NamedTuple):
    """Sequences of pairs, and the targets."""

    inputs: Float[Tensor, "batch pos 2"]
    """A number between 0 and 1; and 1 if it is marked, else 0."""
    targets: Float[Tensor, " batch"]


def adding_batch(step: int, *, length: int, batch: int, seed: int) -> AddingBatch:
    """The batch of one step, the same on every call.

    Hochreiter and Schmidhuber, 1997, section 5.4, in the form of Le et al., 2015
    (https://arxiv.org/abs/1504.00941), section 4.1, and Arjovsky et al., 2016
    (https://arxiv.org/abs/1511.06464), section 4.2: one mark lies in the first half, the other in
    the second, so the first has to be kept for length / 2 steps on average.

    >>> made = adding_batch(0, length=10, batch=3, seed=0)
    >>> made.inputs.shape, made.inputs[:, :, 1].sum(1)
    (torch.Size([3, 10, 2]), tensor([2., 2., 2.]))
    """
    if length < 2:
        raise UsageError(
            f"the adding problem needs 2 steps or more, got length {length}",
            hint="150 is a length at which the simple RNN fails",
        )
    generator = generator_of(seed, step)
    numbers = torch.rand(batch, length, generator=generator)
    half = length // 2
    first = torch.randint(0, half, (batch, 1), generator=generator)
    second = torch.randint(half, length, (batch, 1), generator=generator)
    places = torch.cat([first, second], dim=1)
    marks = torch.zeros(batch, length).scatter_(1, places, 1.0)
    return AddingBatch(torch.stack([numbers, marks], dim=2), numbers.gather(1, places).sum(1))


def adding_batches(
    *, length: int, batch: int, seed: int, first_step: int = 0
) -> Iterator[AddingBatch]:
    """Infinite batches, from ``first_step`` on."""
    for step in itertools.count(first_step):
        yield adding_batch(step, length=length, batch=batch, seed=seed)


N_KINDS = 8
BLANK = 8
SIGNAL = 9
D_VOCAB = 10
N_COPIED = 10


class CopyingBatch(NamedTuple):
    """Inputs and targets, step by step."""

    inputs: Int[Tensor, "batch pos"]
    targets: Int[Tensor, "batch pos"]


def copying_batch(step: int, *, length: int, batch: int, seed: int) -> CopyingBatch:
    """The batch of one step, the same on every call.

    Arjovsky et al., 2016 (https://arxiv.org/abs/1511.06464), section 4.1, after Hochreiter and
    Schmidhuber, 1997: 10 symbols of 8 kinds, ``length - 1`` blanks, the recall signal, 10 blanks;
    the target is ``length + 10`` blanks and then the 10 symbols: ``length + 20`` steps in all.

    >>> made = copying_batch(0, length=3, batch=2, seed=0)
    >>> made.inputs[0]
    tensor([4, 7, 5, 0, 3, 3, 3, 7, 1, 3, 8, 8, 9, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8])
    >>> bool((made.targets[:, -10:] == made.inputs[:, :10]).all())
    True
    """
    if length < 1:
        raise UsageError(
            f"the copying problem needs a delay of 1 step or more, got length {length}",
            hint="100 is a length at which the simple RNN fails",
        )
    symbols = torch.randint(0, N_KINDS, (batch, N_COPIED), generator=generator_of(seed, step))
    inputs = torch.full((batch, length + 2 * N_COPIED), BLANK)
    targets = inputs.clone()
    inputs[:, :N_COPIED] = symbols
    inputs[:, N_COPIED + length - 1] = SIGNAL
    targets[:, -N_COPIED:] = symbols
    return CopyingBatch(inputs, targets)


def copying_batches(
    *, length: int, batch: int, seed: int, first_step: int = 0
) -> Iterator[CopyingBatch]:
    """Infinite batches, from ``first_step`` on."""
    for step in itertools.count(first_step):
        yield copying_batch(step, length=length, batch=batch, seed=seed)


def copying_baseline(length: int) -> float:
    """Loss of a model without memory in nats a step: blanks, then a guess among the 8 kinds.

    >>> round(copying_baseline(100), 4)
    0.1733
    """
    return N_COPIED * math.log(N_KINDS) / (length + 2 * N_COPIED)
