"""A batch shared by processes: each takes some of its rows, and the gradient is that of the whole.

The loss of the whole is the mean over all its units. A mean of the processes' means would be
something else whenever they differ in the number of their units, so each weighs by its own.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map_only

from saccade.processes import Processes
from saccade.training.job import Job, LossOut

# Buffers are the same everywhere and stay so. Newer versions of torch warn of the older name.
_SYNC = "forward_sync_buffers"
_IS_NEW = _SYNC in signature(DistributedDataParallel).parameters
NO_SYNC: dict[str, Any] = {_SYNC if _IS_NEW else "broadcast_buffers": False}


class Share(NamedTuple):
    """The rows of a batch that one process takes."""

    batch: Any
    is_idle: bool
    """There were too few rows: this is a row of another process, and must count for nothing."""


def share_of(batch: Any, processes: Processes) -> Share:
    """Every world-th row, beginning with the process's own number.

    >>> share_of({"x": torch.arange(5)}, Processes(rank=1, world=2)).batch
    {'x': tensor([1, 3])}
    """
    if processes.world == 1:
        return Share(batch, is_idle=False)
    n_rows = min(
        len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()
    )
    is_idle = processes.rank >= n_rows
    rows = slice(0, 1) if is_idle else slice(processes.rank, None, processes.world)
    return Share(tree_map_only(Tensor, lambda x: x[rows] if x.dim() else x, batch), is_idle)


def moved(batch: Any, device: torch.device) -> Any:
    """The batch on a device; what is no tensor stays as it is."""
    if device.type == "cpu":
        return batch
    return tree_map_only(Tensor, lambda x: x.to(device, non_blocking=True), batch)


class JobLoss(nn.Module):
    """A job's loss as a module, so that its gradients can be shared whatever it calls inside."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model = job.model
        self._loss = job.loss

    def forward(self, batch: Any) -> LossOut:
        """The loss of a batch."""
        return self._loss(self.model, batch)


def shared_loss(job: Job, processes: Processes, device: torch.device) -> nn.Module:
    """The job's loss; with several processes its gradients are means over them.

    Buffers are left alone: each process has its own rows, and so its own carried states.
    """
    loss = JobLoss(job)
    if processes.world == 1:
        return loss
    return DistributedDataParallel(
        loss,
        device_ids=[device] if device.type == "cuda" else None,
        find_unused_parameters=job.has_idle_weights,
        gradient_as_bucket_view=True,
        **NO_SYNC,
    )
