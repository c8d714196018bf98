"""The processes that share the work: a single one, or those that ``torchrun`` started.

Also when to stop: Ctrl-C and a cluster's SIGTERM, checked between two steps.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """Rank and world size of this process, and collective operations."""

    rank: int = 0
    world: int = 1

    @classmethod
    def started(cls) -> Processes:
        """Rank and world size from the environment of ``torchrun``, before the group is joined."""
        rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        return cls(rank=int(rank), world=int(world))

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
        """Elementwise maximum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)

    def from_first(self, tensors: Iterable[Tensor]) -> None:
        """Broadcast the tensors of the first process to all others, in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def in_order(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, by rank; their first dimension may differ."""
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
        """Wait until all processes have reached this point."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(*, has_own_gpu: bool = False) -> Iterator[Processes]:
    """Join the process group if ``torchrun`` started this process, and leave it at the end.

    CPU tensors are exchanged with gloo, which works on every machine.

    Args:
        has_own_gpu: each process has its own GPU, so GPU tensors are exchanged with nccl.
    """
    if Processes.started().world == 1:
        yield Processes()
        return
    owner = not dist.is_initialized()
    if owner:
        # One process validates while the others wait, which may take longer than gloo's half hour.
        backend = "cpu:gloo,cuda:nccl" if has_own_gpu else "gloo"
        dist.init_process_group(backend, timeout=timedelta(hours=6))
    try:
        yield Processes(rank=dist.get_rank(), world=dist.get_world_size())
    finally:
        if owner:
            dist.destroy_process_group()


@contextmanager
def noticing_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether this process was asked to stop.

    The first Ctrl-C only asks; a second one interrupts at once, as usual. SIGTERM, which cluster
    schedulers send before they kill a job, asks too.
    """
    asked = False

    def on_signal(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread only
        return
    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
