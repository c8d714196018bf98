"""The processes that share a fit: one alone, or those that ``torchrun`` started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is, and what they do together."""

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """True for the one process that prints and writes."""
        return self.rank == 0

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over all processes, in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def largest(self, tensor: Tensor) -> None:
        """The largest value over all processes, element by element, in place."""
        if self.world > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)

    def from_first(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes what the first one holds, in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def in_order(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes by rank; they may differ in their first size."""
        if self.world == 1:
            return [tensor]
        size = torch.tensor([len(tensor)])
        sizes = [torch.zeros_like(size) for _ in range(self.world)]
        dist.all_gather(sizes, size)
        longest = int(max(int(each) for each in sizes))
        padded = tensor.new_zeros(longest, *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        found = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(found, padded)
        return [each[: int(n)] for each, n in zip(found, sizes, strict=True)]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined() -> Iterator[Processes]:
    """Join the other processes if ``torchrun`` started this one, and leave them at the end.

    Sums are exchanged through the CPU (gloo) whatever the devices: they are few and large, and this
    works on every machine.
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    owner = not dist.is_initialized()
    if owner:
        dist.init_process_group("gloo")
    try:
        yield Processes(rank=dist.get_rank(), world=dist.get_world_size())
    finally:
        if owner:
            dist.destroy_process_group()
