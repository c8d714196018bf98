"""Settings of the processor and of memory that long work with many large tensors wants."""

from __future__ import annotations

import ctypes
import sys

import torch

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
