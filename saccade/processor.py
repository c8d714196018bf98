"""Settings of the processor and of memory that long work with many large tensors wants."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from saccade.errors import TrainingError

# Of glibc's mallopt(3): from which size on free memory goes back, and a piece is mapped apart.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
NEVER = 2**31 - 1


def prepare_for_long_work() -> None:
    """Make this process fit for training; it concerns speed, and numbers below 1e-38.

    - Numbers too small for the fast path become zero: gradients that vanish end in such, and are
      three times slower. Threads take this over from the one that makes them, so call it first.
    - What torch frees on a CPU stays with the process (glibc only). Otherwise each tensor of more
      than 32 MB, such as the logits of a batch, goes back to the system and comes again page by
      page, which is a fifth of the time of a small Transformer's training step.
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

    The weights of every module that is made inside are counted before they are filled: the system
    hands out more memory than it has and ends the process later, without a word.

    Args:
        copies: how often the weights will be held: 4 for training (gradients, Adam's two averages).

    Raises:
        TrainingError: there is not enough memory for the weights, or for what is computed inside.
    """
    limit, held = memory_bytes(), 0

    def count(_: nn.Module, name: str, weight: Tensor | None) -> None:
        nonlocal held
        held += 0 if weight is None else weight.numel() * weight.element_size() * copies
        if held > limit:
            raise _too_large(f"the weights up to {name!r} alone take {_size(held)}", limit)

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if needed := _refused_bytes(error):
            raise _too_large(needed, limit) from error
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
    """What an allocation asked for, in words; empty if the error is of another kind."""
    text = str(error)
    if found := re.search(r"tried to allocate (\d+) bytes", text):
        return f"one tensor alone takes {_size(int(found[1]))}"
    if isinstance(error, torch.OutOfMemoryError):
        return text.partition(". ")[0].lower()
    if isinstance(error, MemoryError) or "Storage size calculation overflowed" in text:
        return "one tensor alone takes more than can be asked for"
    return ""


def _too_large(needed: str, limit: int) -> TrainingError:
    return TrainingError(
        f"not enough memory: {needed}, this machine has {_size(limit)}",
        hint="smaller widths (d_hidden, d_model, ...), a smaller batch or fewer layers",
    )


def _size(n: int) -> str:
    return f"{n / 1e9:,.1f} GB"
