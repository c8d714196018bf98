"""The adding problem: two numbers of a long sequence are marked; what is their sum?"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.tasks.step_seed import generator_of

BASELINE = 1 / 6
"""The error of always saying 1: the variance of the sum of two uniform numbers."""


class AddingBatch(NamedTuple):
    """Sequences of pairs, and what is asked."""

    inputs: Float[Tensor, "batch pos 2"]
    """A number between 0 and 1; and 1 if it is marked, else 0."""
    targets: Float[Tensor, " batch"]


def adding_batch(step: int, *, length: int, batch: int, seed: int) -> AddingBatch:
    """The batch of one step, the same whenever it is asked for.

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
            hint="150 is a length at which the plain network fails",
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
    """Batches without end, from ``first_step`` on."""
    for step in itertools.count(first_step):
        yield adding_batch(step, length=length, batch=batch, seed=seed)
