"""The copying problem: ten symbols, a long silence, then say them again."""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.tasks.step_seed import generator_of

N_KINDS = 8
BLANK = 8
SIGNAL = 9
D_VOCAB = 10
N_COPIED = 10


class CopyingBatch(NamedTuple):
    """What is heard and what should be said, step by step."""

    inputs: Int[Tensor, "batch pos"]
    targets: Int[Tensor, "batch pos"]


def copying_batch(step: int, *, length: int, batch: int, seed: int) -> CopyingBatch:
    """The batch of one step, the same whenever it is asked for.

    Arjovsky et al., 2016 (https://arxiv.org/abs/1511.06464), section 4.1, after Hochreiter and
    Schmidhuber, 1997: 10 symbols of 8 kinds, ``length - 1`` blanks, the signal to speak, 10 blanks;
    wanted are ``length + 10`` blanks and then the 10 symbols: ``length + 20`` steps in all.

    >>> made = copying_batch(0, length=3, batch=2, seed=0)
    >>> made.inputs[0]
    tensor([4, 7, 5, 0, 3, 3, 3, 7, 1, 3, 8, 8, 9, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8])
    >>> bool((made.targets[:, -10:] == made.inputs[:, :10]).all())
    True
    """
    if length < 1:
        raise UsageError(
            f"the copying problem needs a silence of 1 step or more, got length {length}",
            hint="100 is a length at which the plain network fails",
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
    """Batches without end, from ``first_step`` on."""
    for step in itertools.count(first_step):
        yield copying_batch(step, length=length, batch=batch, seed=seed)


def copying_baseline(length: int) -> float:
    """Nats a step of a model without memory: blanks, then a guess among the 8 kinds.

    >>> round(copying_baseline(100), 4)
    0.1733
    """
    return N_COPIED * math.log(N_KINDS) / (length + 2 * N_COPIED)
