"""Synthetic memory tasks: copy, repeat copy, associative recall, priority sort, sort by key."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.tasks.datasets import generator_of

# Random bits to be stored and reproduced: the tasks of the Neural Turing Machine.
#
# Graves et al., 2014 (https://arxiv.org/abs/1410.5401), section 4. All sequences of a batch have
# one length, drawn for each batch. Bits come first in an input; the channels after them specify the
# operation.


class BitBatch(NamedTuple):
    """Inputs, targets, and the steps that count."""

    inputs: Float[Tensor, "batch pos d_input"]
    targets: Float[Tensor, "batch pos d_bits"]
    """Zero where no output is expected."""
    is_asked: Bool[Tensor, "batch pos"]


def copy_batch(
    step: int, *, lengths: tuple[int, int], batch: int, seed: int, d_bits: int = 8
) -> BitBatch:
    """Section 4.1: vectors of bits, a delimiter, and then the same vectors as targets.

    Args:
        lengths: The shortest and the longest sequence; (1, 20) in the paper.

    >>> made = copy_batch(0, lengths=(3, 3), batch=2, seed=0, d_bits=4)
    >>> made.inputs.shape, made.is_asked[0].tolist()
    (torch.Size([2, 7, 5]), [False, False, False, False, True, True, True])
    >>> bool((made.targets[:, 4:] == made.inputs[:, :3, :4]).all())
    True
    """
    generator = generator_of(seed, step)
    length = _draw(lengths, generator)
    return as_copy(_bits((batch, length, d_bits), generator))


def as_copy(vectors: Float[Tensor, "batch length d_bits"]) -> BitBatch:
    """The copy task of the given vectors."""
    batch, _, d_bits = vectors.shape
    shown = functional.pad(vectors, (0, 1))  # [batch, length, d_bits + 1]
    mark = functional.one_hot(torch.tensor(d_bits), d_bits + 1).to(vectors)
    return _asked(torch.cat([shown, mark.expand(batch, 1, -1)], dim=1), vectors)


def repeat_copy_batch(
    step: int,
    *,
    lengths: tuple[int, int],
    repeats: tuple[int, int],
    batch: int,
    seed: int,
    d_bits: int = 8,
) -> BitBatch:
    """Section 4.2: the same, repeated several times, and then an end mark.

    The number of repeats comes on a channel of its own, with the delimiter. The paper scales it to
    mean 0 and variance 1; a tenth of it works as well, and does not depend on the range. The last
    bit of a target is the end mark.

    >>> made = repeat_copy_batch(0, lengths=(2, 2), repeats=(3, 3), batch=2, seed=0, d_bits=4)
    >>> made.inputs.shape, int(made.is_asked[0].sum()), made.targets[0, -1].tolist()
    (torch.Size([2, 10, 6]), 7, [0.0, 0.0, 0.0, 0.0, 1.0])
    """
    generator = generator_of(seed, step)
    length, times = _draw(lengths, generator), _draw(repeats, generator)
    return as_repeat_copy(_bits((batch, length, d_bits), generator), times)


def as_repeat_copy(vectors: Float[Tensor, "batch length d_bits"], times: int) -> BitBatch:
    """The repeat copy task of the given vectors."""
    batch, _, d_bits = vectors.shape
    mark = torch.zeros(batch, 1, d_bits + 2)
    mark[:, :, d_bits], mark[:, :, d_bits + 1] = 1.0, times / 10
    shown = torch.cat([functional.pad(vectors, (0, 2)), mark], dim=1)
    said = functional.pad(vectors.repeat(1, times, 1), (0, 1))
    end = functional.one_hot(torch.tensor(d_bits), d_bits + 1).to(vectors).expand(batch, 1, -1)
    return _asked(shown, torch.cat([said, end], dim=1))


def recall_batch(
    step: int,
    *,
    items: tuple[int, int],
    batch: int,
    seed: int,
    d_bits: int = 6,
    per_item: int = 3,
) -> BitBatch:
    """Section 4.3, associative recall: a list of items, then a query; the next item is the target.

    An item is ``per_item`` vectors of bits between marks: one channel marks the start of an item,
    another the start and the end of the query. The query is never the last item.

    >>> made = recall_batch(0, items=(3, 3), batch=2, seed=0)
    >>> made.inputs.shape, int(made.is_asked[0].sum())
    (torch.Size([2, 20, 8]), 3)
    """
    if items[0] < 2:
        raise UsageError(
            f"recall needs two items or more, got {items[0]}", hint="the last is never the query"
        )
    generator = generator_of(seed, step)
    n_items = _draw(items, generator)
    vectors = _bits((batch, n_items, per_item, d_bits), generator)
    return as_recall(vectors, torch.randint(0, n_items - 1, (batch,), generator=generator))


def as_recall(
    items: Float[Tensor, "batch item per_item d_bits"], asked: Int[Tensor, " batch"]
) -> BitBatch:
    """The recall task of the given items, with the index of each sequence's query."""
    batch, d_bits = len(items), items.shape[-1]
    rows = torch.arange(batch)
    item_mark, query_mark = functional.one_hot(torch.tensor([d_bits, d_bits + 1])).to(items)
    marks = item_mark.expand(*items.shape[:2], 1, -1)
    shown = torch.cat([marks, functional.pad(items, (0, 2))], dim=2).flatten(1, 2)
    around = query_mark.expand(batch, 1, -1)
    query = torch.cat([around, functional.pad(items[rows, asked], (0, 2)), around], dim=1)
    return _asked(torch.cat([shown, query], dim=1), items[rows, asked + 1])


def priority_sort_batch(
    step: int, *, n_shown: int, n_wanted: int, batch: int, seed: int, d_bits: int = 8
) -> BitBatch:
    """Section 4.5: vectors with a priority each; the target is those of the highest, in that order.

    Priorities are uniform in [-1, 1], on a channel of their own; then a delimiter. The paper has 20
    inputs and 16 targets.

    >>> made = priority_sort_batch(0, n_shown=5, n_wanted=3, batch=2, seed=0, d_bits=4)
    >>> best = made.inputs[0, :5, 4].argmax()
    >>> bool((made.targets[0, 6] == made.inputs[0, best, :4]).all())
    True
    """
    if not 1 <= n_wanted <= n_shown:
        raise UsageError(
            f"of {n_shown} vectors {n_wanted} cannot be targets",
            hint="n_wanted is at least 1 and at most n_shown",
        )
    generator = generator_of(seed, step)
    vectors = _bits((batch, n_shown, d_bits), generator)
    priority = 2 * torch.rand(batch, n_shown, generator=generator) - 1
    return as_priority_sort(vectors, priority, n_wanted)


def as_priority_sort(
    vectors: Float[Tensor, "batch shown d_bits"], priority: Float[Tensor, "batch shown"], n: int
) -> BitBatch:
    """The task of the given vectors and priorities; the ``n`` highest are the target."""
    batch, _, d_bits = vectors.shape
    shown = functional.pad(torch.cat([vectors, priority[:, :, None]], dim=2), (0, 1))
    mark = functional.one_hot(torch.tensor(d_bits + 1), d_bits + 2).to(vectors)
    order = priority.argsort(dim=1, descending=True)[:, :n]
    wanted = vectors.gather(1, order[:, :, None].expand(-1, -1, d_bits))
    return _asked(torch.cat([shown, mark.expand(batch, 1, -1)], dim=1), wanted)


def _asked(
    shown: Float[Tensor, "batch shown d_input"], wanted: Float[Tensor, "batch asked d_bits"]
) -> BitBatch:
    """First all inputs, then zeros, with a target at every step."""
    n_shown, n_asked = shown.shape[1], wanted.shape[1]
    asked = torch.arange(n_shown + n_asked) >= n_shown
    return BitBatch(
        inputs=functional.pad(shown, (0, 0, 0, n_asked)),
        targets=functional.pad(wanted, (0, 0, n_shown, 0)),
        is_asked=asked.expand(len(shown), -1),
    )


def _bits(shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    return torch.randint(0, 2, shape, generator=generator).float()


def _draw(bounds: tuple[int, int], generator: torch.Generator) -> int:
    low, high = bounds
    if not 1 <= low <= high:
        raise UsageError(
            f"cannot draw a number from {low} to {high}",
            hint="give a minimum and a maximum, from 1",
        )
    return int(torch.randint(low, high + 1, (), generator=generator))


class SortBatch(NamedTuple):
    """Items in random order, and sorted."""

    items: Float[Tensor, "batch item d_item"]
    """The bits of key and value, highest bit first, and a 1 that marks an item."""
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
            f"cannot sort from {low} to {high} items", hint="give a minimum and a maximum, from 1"
        )
    generator = generator_of(seed, step)
    length = int(torch.randint(low, high + 1, (), generator=generator))
    numbers = torch.randint(0, 2**d_bits, (2, batch, length), generator=generator)
    return as_sorting(*numbers, d_bits=d_bits)


def as_sorting(
    keys: Int[Tensor, "batch item"], values: Int[Tensor, "batch item"], *, d_bits: int = 5
) -> SortBatch:
    """The sorting task of the given pairs."""
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
