"""A job: all that the loop needs to train a system."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map_only

from saccade.distributed import Processes
from saccade.errors import TrainingError
from saccade.zoo.training.settings import TrainConfig

# Curriculum: a training whose data gets harder when validation scores are good enough.


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Data in stages; the next one begins when the scores of this one are good enough.

    A curriculum by epoch does not need this: ``Job.batches`` gets the epoch.
    """

    n_stages: int
    """Stages are numbered from 0; the system is evaluated on the last."""
    batches: Callable[[int, int], Iterable[Any]]
    """``batches(epoch, stage)``: the same for the same two numbers."""
    is_passed: Callable[[Sequence[Mapping[str, float]], int], bool]
    """``is_passed(scores, stage)``: whether it is passed, from its validations, the latest last."""


NOTHING: Mapping[str, Any] = MappingProxyType({})


class LossOut(NamedTuple):
    """The loss of a batch."""

    loss: Float[Tensor, ""]
    """To be minimised: a mean over ``n`` units, so that parts of a batch can be combined."""
    n: int
    """How many units (tokens, images, ...) it is the mean of."""
    logged: Mapping[str, Float[Tensor, ""] | float] = NOTHING
    """More means over the same units, for the log; the same names at every step."""


class Carried(NamedTuple):
    """State that a loss carries from step to step, such as that of a language model's RNN.

    A resumed run needs it, too. The rows of the batch are on the first axis.
    """

    read: Callable[[], Mapping[str, Tensor]]
    write: Callable[[Mapping[str, Tensor]], None]
    """Restores the result of ``read``; an empty mapping resets the state."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A system, its training data, its loss and its validation.

    A batch is a tensor, or a tuple, NamedTuple, list or dict of them, with the rows of the batch on
    the first axis of each.
    """

    model: nn.Module
    batches: Callable[[int], Iterable[Any]] | Curriculum
    """``batches(epoch)``: the same in the same order for the same epoch; epochs count from 0."""
    loss: Callable[[nn.Module, Any], LossOut]
    validate: Callable[[nn.Module], Mapping[str, float]]
    """Scores on held-out data; called without gradients, in eval mode, in the first process."""
    score: str
    """The score to watch, a key of what ``validate`` gives."""
    is_better: Literal["less", "more"]
    """Whether a lower or a higher score is better."""
    config: TrainConfig
    kept: Mapping[str, Any] = field(default_factory=dict)
    """Stored with the weights, as JSON: a vocabulary, for instance."""
    before_step: Callable[[nn.Module, int], None] | None = None
    """Called before each step with its number, for example to lower a temperature."""
    is_done: Callable[[Mapping[str, float]], bool] | None = None
    """Whether these scores are good enough to end the training."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Factors on the learning rate for weights, by the prefix of their names."""
    carried: Carried | None = None
    """State that the loss carries from step to step, apart from the model's buffers."""
    has_idle_weights: bool = False
    """Some weights are unused in some steps; needed with several processes."""

    def batches_of(self, epoch: int, stage: int) -> Iterable[Any]:
        """The batches of an epoch, at a stage of the curriculum if there is one."""
        if isinstance(self.batches, Curriculum):
            return self.batches.batches(epoch, stage)
        return self.batches(epoch)

    def beats(self, score: float, best: float | None) -> bool:
        """Whether a score is better than the best one so far."""
        if best is None:
            return True
        return score < best if self.is_better == "less" else score > best


# A batch shared by processes: each takes some of its rows, and the gradient is that of the whole.
#
# The loss of the whole is the mean over all its units. The mean of the processes' means would
# differ from it if their numbers of units differ, so each is weighted by its own.

# Buffers are the same everywhere and stay so. Newer versions of torch warn of the older name.
_SYNC = "forward_sync_buffers"
_IS_NEW = _SYNC in signature(DistributedDataParallel).parameters
NO_SYNC: dict[str, Any] = {_SYNC if _IS_NEW else "broadcast_buffers": False}


class Share(NamedTuple):
    """The rows of a batch that one process takes."""

    batch: Any
    is_idle: bool
    """There were too few rows: this is a row of another process, with weight zero."""


def share_of(batch: Any, processes: Processes) -> Share:
    """Every world-th row, starting at the rank of the process.

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
    """The batch on a device; anything but tensors stays as it is."""
    if device.type == "cpu":
        return batch
    return tree_map_only(Tensor, lambda x: x.to(device, non_blocking=True), batch)


def to_device_of(model: nn.Module, value: Any) -> Any:
    """A batch, a tensor or a tree of them where the model is.

    Training batches are moved by the loop. What a recipe reads itself, to validate, evaluate or
    trace, goes through here, so that no recipe names a device.
    """
    weight = next(chain(model.parameters(), model.buffers()), None)
    return value if weight is None else moved(value, weight.device)


class JobLoss(nn.Module):
    """A job's loss as a module, so that DistributedDataParallel can average its gradients."""

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


# Means of the steps between two lines of the log.

N = "n"  # name of the number of units of a step


class Means(NamedTuple):
    """Means over steps."""

    values: dict[str, float]
    n: int
    """Over how many units."""
    losses: tuple[float, ...] = ()
    """Of each step."""


class Window:
    """The steps since the last line of the log; values stay on the device until it is written.

    Fetching a value from a GPU at every step would synchronise at every step.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._names: list[str] = []
        self._rows: list[Tensor] = []  # [name], each times its n; the last is n itself

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, out: LossOut, norm: Tensor, *, n: int) -> None:
        """Record a step: its loss and the job's logged values, with the weight of ``n`` units."""
        numbers = {**out.logged, "loss": out.loss, "gradient_norm": norm}
        self._names = _ordered(numbers)
        device = out.loss.device
        values = [
            torch.as_tensor(numbers[name], device=device).detach().float()
            for name in self._names[:-1]
        ]
        self._rows.append(torch.stack([*values, torch.ones((), device=device)]) * n)

    def means(self, *, last_step: int) -> Means:
        """The mean of each number over all units of all processes; raises if one is not finite.

        Args:
            last_step: the number of the latest step, to name the failed one.
        """
        if not self._rows:
            return Means({}, 0)
        sums = self._sums().double()
        for name in ("loss", "gradient_norm"):
            column = sums[:, self._names.index(name)] / sums[:, -1]
            wrong = (~column.isfinite()).nonzero()
            if len(wrong):
                at = int(wrong[0])
                raise _not_finite(name, float(column[at]), last_step - len(sums) + 1 + at)
        means = (sums.sum(0) / sums[:, -1].sum()).tolist()
        losses = sums[:, self._names.index("loss")] / sums[:, -1]
        return Means(
            dict(zip(self._names[:-1], means[:-1], strict=True)),
            int(sums[:, -1].sum()),
            tuple(losses.tolist()),
        )

    def clear(self) -> None:
        """Begin the next line."""
        self._rows = []

    def tensors(self) -> dict[str, Tensor]:
        """The steps of all processes as named columns, for a checkpoint."""
        if not self._rows:
            return {}
        return dict(zip(self._names, self._sums().unbind(1), strict=True))

    def restore(self, tensors: Mapping[str, Tensor], *, device: torch.device) -> None:
        """Restore the result of `tensors`: in the first process, which includes the others."""
        if not tensors:
            return
        self._names = _ordered(tensors)
        rows = torch.stack([tensors[name] for name in self._names], dim=1).to(device)
        self._rows = list((rows if self._processes.is_first else torch.zeros_like(rows)).unbind(0))

    def _sums(self) -> Float[Tensor, "step name"]:
        rows = torch.stack(self._rows)
        self._processes.add_up([rows])
        return rows.cpu()


def _ordered(names: Iterable[str]) -> list[str]:
    """A fixed order, independent of that in a file or a job."""
    return ["loss", "gradient_norm", *sorted({*names} - {"loss", "gradient_norm", N}), N]


def _not_finite(name: str, value: float, step: int) -> TrainingError:
    what = name.replace("_", " ")
    return TrainingError(
        f"the {what} is {value} at step {step}",
        hint="the last checkpoint is kept; a lower learning_rate, a longer warmup or a smaller "
        "clip may help, in a new run",
    )
