"""Optimisers, learning rate schedules, and the processor and memory settings of a training."""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer

from saccade.errors import TrainingError
from saccade.zoo.training.settings import OPEN_ENDED, TrainConfig

# torch's optimisers, each in its fastest implementation.


def make_optimiser(
    model: nn.Module, config: TrainConfig, *, rates: Mapping[str, float] | None = None
) -> Optimizer:
    """An optimiser over the model's trainable weights.

    Only tensors of two axes and more have weight decay: decay of a bias or a scale changes the
    function instead of simplifying it.

    Args:
        rates: factors on the learning rate by the prefix of a weight's name, for parts that must
            learn more slowly than the rest: ``{"localisation.": 0.1}``.

    >>> optimiser = make_optimiser(nn.Linear(3, 2), TrainConfig(weight_decay=0.1))
    >>> [(group["weight_decay"], group["factor"]) for group in optimiser.param_groups]
    [(0.1, 1.0), (0.0, 1.0)]
    """
    groups = _groups(model, config, rates or {})
    rate = config.learning_rate
    match config.optimiser:
        case "adam":
            return torch.optim.Adam(groups, lr=rate, betas=config.betas, fused=True)
        case "adamw":
            return torch.optim.AdamW(groups, lr=rate, betas=config.betas, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, lr=rate, momentum=config.momentum, fused=True)
        case "rmsprop":  # has no fused form
            return torch.optim.RMSprop(groups, lr=rate, momentum=config.momentum, foreach=True)
        case "muon":
            return _muon(model, groups, config)


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of every group, each by its own factor."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["factor"]


class Together(Optimizer):
    """Several optimisers, each over its own weights, as one with all groups and states."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self._share()

    def step(self, closure: Any = None) -> Any:
        """A step of each; the closure is called once."""
        first, *others = self.parts
        loss = first.step(closure)
        for part in others:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        at = 0
        for part in self.parts:
            n = len(part.param_groups)
            part.param_groups = self.param_groups[at : at + n]
            part.state = self.state
            at += n


def _muon(model: nn.Module, groups: Sequence[dict[str, Any]], config: TrainConfig) -> Optimizer:
    """Muon (https://kellerjordan.github.io/posts/muon) on matrices, Adam on all other weights.

    A matrix's step is made orthogonal: directions in which its gradient is small move as far as
    the others. Steps are as large as Adam's (https://arxiv.org/abs/2502.16982, section 2.2), so
    that both learn at one rate. Rows of an embedding are single vectors: Adam moves them.
    """
    embedded = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}

    def some(*, are_matrices: bool) -> list[dict[str, Any]]:
        chosen = [
            {
                **group,
                "params": [
                    weight
                    for weight in group["params"]
                    if (weight.dim() == 2 and id(weight) not in embedded) == are_matrices
                ],
            }
            for group in groups
        ]
        return [group for group in chosen if group["params"]]

    parts: list[Optimizer] = []
    rate = config.learning_rate
    if matrices := some(are_matrices=True):
        parts.append(torch.optim.Muon(matrices, lr=rate, adjust_lr_fn="match_rms_adamw"))
    if others := some(are_matrices=False):
        parts.append(torch.optim.AdamW(others, lr=rate, betas=config.betas, fused=True))
    return Together(parts)


def _groups(
    model: nn.Module, config: TrainConfig, rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            factor = next((f for start, f in rates.items() if name.startswith(start)), 1.0)
            decay = config.weight_decay if weight.dim() > 1 else 0.0
            groups.setdefault((decay, factor), []).append(weight)
    if not groups:
        raise TrainingError(
            f"{type(model).__name__} has no weights that could be trained",
            hint="set epochs, steps and minutes to 0 for a system that is fitted by counting",
        )
    return [
        {"params": weights, "weight_decay": decay, "factor": factor}
        for (decay, factor), weights in groups.items()
    ]


# Schedules: the learning rate of each step.


def rate_at(step: int, config: TrainConfig, *, total: int | None, halvings: int = 0) -> float:
    """The learning rate of a step; the first is step 1.

    Every schedule begins with ``warmup`` steps of linear rise. Then:

    - constant: stays.
    - warmup-inverse-sqrt: falls as 1 / sqrt(step), Vaswani et al., 2017
      (https://arxiv.org/abs/1706.03762), section 5.3, equation 3. They derive the peak from
      d_model; here it is ``learning_rate``, so that it has the same meaning for every system.
    - linear, cosine: fall to zero at the last step; cosine is half a period (Loshchilov & Hutter,
      2017, https://arxiv.org/abs/1608.03983, equation 5, without restarts).
    - plateau-halving: halves when validation no longer improves, as Sutskever et al., 2014
      (https://arxiv.org/abs/1409.3215), section 3.4, did on a fixed schedule.

    Args:
        total: total number of steps; only linear and cosine need it.
        halvings: how often plateau-halving has halved.

    >>> config = TrainConfig(learning_rate=1.0, schedule="linear", warmup=2)
    >>> [rate_at(step, config, total=6) for step in range(1, 7)]
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    return config.learning_rate * _rise(step, config) * _fall(step, config, total, halvings)


def check_schedule(config: TrainConfig, total: int | None) -> None:
    """Refuse a schedule that needs the last step if it is unknown."""
    if config.schedule not in OPEN_ENDED and total is None:
        raise TrainingError(
            f"the schedule {config.schedule} falls to zero at the last step, and its number "
            "cannot be derived from the number of epochs here",
            hint="--set steps=N says it",
        )


def _rise(step: int, config: TrainConfig) -> float:
    return min(1.0, step / config.warmup) if config.warmup else 1.0


def _fall(step: int, config: TrainConfig, total: int | None, halvings: int) -> float:
    match config.schedule:
        case "warmup-inverse-sqrt":
            return min(1.0, math.sqrt(config.warmup / step))
        case "plateau-halving":
            return 0.5**halvings
        case "linear":
            return 1.0 - _way(step, config, total)
        case "cosine":
            return 0.5 + 0.5 * math.cos(math.pi * _way(step, config, total))
        case _:
            return 1.0


def _way(step: int, config: TrainConfig, total: int | None) -> float:
    """The completed fraction from the peak to the end."""
    assert total is not None, f"{config.schedule} needs the total number of steps"
    return min(1.0, max(0, step - config.warmup) / max(1, total - config.warmup))


# Settings of the processor and of memory for long work with many large tensors.

# Of glibc's mallopt(3): sizes from which free memory is returned, and blocks are mapped separately.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
NEVER = 2**31 - 1


def prepare_for_long_work() -> None:
    """Set up this process for training; affects speed, and numbers below 1e-38.

    - Denormal numbers become zero: vanishing gradients produce them, and they are three times
      slower. Threads inherit this from their parent thread, so call it first.
    - Memory that torch frees on a CPU stays with the process (glibc only). Otherwise each tensor of
      more than 32 MB, such as the logits of a batch, is returned to the system and allocated again
      page by page, which is a fifth of the time of a small Transformer's training step.
    """
    torch.set_flush_denormal(True)
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(MMAP_THRESHOLD, NEVER)
            mallopt(TRIM_THRESHOLD, NEVER)


@contextmanager
def within_memory(*, copies: int) -> Iterator[None]:
    """Refuse, in one line, a model that this machine's memory cannot hold.

    The weights of every module that is created inside are counted before they are initialised: the
    system overcommits memory and kills the process later, without a message.

    Args:
        copies: number of copies of the weights: 4 for training (gradients, Adam's two averages).

    Raises:
        TrainingError: there is not enough memory for the weights, or for what is computed inside.
    """
    limit, needed = memory_bytes(), 0

    def count(_: nn.Module, name: str, weight: Tensor) -> None:
        nonlocal needed
        needed += weight.numel() * weight.element_size() * copies
        if needed > limit:
            raise _too_large(f"the weights up to {name!r} alone take {_size(needed)}", limit)

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if refused := _refused_bytes(error):
            raise _too_large(refused, limit) from error
        raise
    finally:
        hook.remove()


def memory_bytes() -> int:
    """The memory of this machine, or of the container that this process is in."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if _has_sysconf() else []
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(file).read_text().strip() if Path(file).is_file() else ""
        limits += [int(text)] if text.isdecimal() else []  # "max": no limit
    return min(limits, default=sys.maxsize)


def _has_sysconf() -> bool:
    return {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(getattr(os, "sysconf_names", ()))


def _refused_bytes(error: Exception) -> str:
    """The size of a failed allocation, in words; empty if the error is of another kind."""
    text = str(error)
    if found := re.search(r"tried to allocate (\d+) bytes", text):
        return f"one tensor alone takes {_size(int(found[1]))}"
    if isinstance(error, torch.OutOfMemoryError):
        return text.partition(". ")[0].lower()
    if isinstance(error, MemoryError) or "Storage size calculation overflowed" in text:
        return "one tensor alone takes more than can be allocated"
    return ""


def _too_large(needed: str, limit: int) -> TrainingError:
    return TrainingError(
        f"not enough memory: {needed}, this machine has {_size(limit)}",
        hint="smaller widths (d_hidden, d_model, ...), a smaller batch or fewer layers",
    )


def _size(n: int) -> str:
    return f"{n / 1e9:,.1f} GB"
