"""Pairs of a key and a value, to be sorted by their keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from saccade.errors import UsageError
from saccade.tasks.step_seed import generator_of


class SortBatch(NamedTuple):
    """Items in any order, and in the right one."""

    items: Float[Tensor, "batch item d_item"]
    """The bits of key and value, highest bit first, and a 1 that says that there is an item."""
    targets: Float[Tensor, "batch item d_pair"]
    """The bits of key and value."""


def sort_batch(
    step: int, *, lengths: tuple[int, int], batch: int, seed: int, d_bits: int = 5
) -> SortBatch:
    """Random pairs; equal keys keep the order in which they came.

    Andrychowicz and Kurach, 2016 (https://arxiv.org/abs/1602.03218), section 4, "sort". All
    sequences of a batch have one length, drawn from ``lengths``, both ends included.

    >>> made = sort_batch(0, lengths=(3, 3), batch=2, seed=0)
    >>> made.items.shape, made.targets.shape
    (torch.Size([2, 3, 11]), torch.Size([2, 3, 10]))
    """
    low, high = lengths
    if not 1 <= low <= high:
        raise UsageError(
            f"cannot sort from {low} to {high} items", hint="give a least and a largest, from 1"
        )
    generator = generator_of(seed, step)
    length = int(torch.randint(low, high + 1, (), generator=generator))
    numbers = torch.randint(0, 2**d_bits, (2, batch, length), generator=generator)
    return as_sorting(*numbers, d_bits=d_bits)


def as_sorting(
    keys: Int[Tensor, "batch item"], values: Int[Tensor, "batch item"], *, d_bits: int = 5
) -> SortBatch:
    """These pairs, to be sorted."""
    pairs = torch.cat([bits_of(keys, d_bits), bits_of(values, d_bits)], dim=2)
    order = keys.sort(dim=1, stable=True).indices
    targets = pairs.gather(1, order[:, :, None].expand_as(pairs))
    return SortBatch(functional.pad(pairs, (0, 1), value=1.0), targets)


def bits_of(numbers: Int[Tensor, "*at"], d_bits: int) -> Float[Tensor, "*at d_bits"]:
    """Binary digits, the highest first.

    >>> bits_of(torch.tensor([6]), 4)
    tensor([[0., 1., 1., 0.]])
    """
    places = torch.arange(d_bits - 1, -1, -1)
    return (numbers[..., None] >> places & 1).float()
