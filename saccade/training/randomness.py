"""The state of everything that draws at random, as tensors: seeded, taken, put back."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

# One process must not draw what its neighbour draws with the next seed.
STRIDE = 1_000_003


def seed_all(seed: int, *, rank: int = 0) -> None:
    """Seed torch, numpy and Python, differently in every process."""
    mixed = seed + STRIDE * rank
    torch.manual_seed(mixed)  # every GPU's generator as well
    np.random.seed(mixed % 2**32)  # noqa: NPY002  the global one is what other libraries draw from
    random.seed(mixed)


def random_state() -> dict[str, Tensor]:
    """Where all the generators are.

    >>> before = random_state()
    >>> first = torch.rand(())
    >>> set_random_state(before)
    >>> bool(first == torch.rand(()))
    True
    """
    _, words, gauss = random.getstate()
    _, key, place, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        **{f"cuda.{i}": state for i, state in enumerate(_cuda_states())},
        "python": torch.tensor(words),
        # NaN stands for "none waiting": the second of a pair of normal numbers.
        "python_gauss": torch.tensor(float("nan") if gauss is None else gauss, dtype=torch.float64),
        "numpy": torch.tensor([*(int(word) for word in key), place, has_gauss]),
        "numpy_gauss": torch.tensor(cached, dtype=torch.float64),
    }


def set_random_state(state: Mapping[str, Tensor]) -> None:
    """Put all the generators back to where they were."""
    torch.set_rng_state(state["torch"])
    for device, _ in enumerate(_cuda_states()):
        if f"cuda.{device}" in state:  # a run may be taken up on a machine without this GPU
            torch.cuda.set_rng_state(state[f"cuda.{device}"], device)
    gauss = float(state["python_gauss"])
    words = tuple(state["python"].tolist())
    random.setstate((3, words, None if math.isnan(gauss) else gauss))
    *key, place, has_gauss = state["numpy"].tolist()
    numbers = ("MT19937", np.array(key, np.uint32), place, has_gauss, float(state["numpy_gauss"]))
    np.random.set_state(numbers)  # noqa: NPY002


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Inside, everything draws from this seed; afterwards, as if nothing had been drawn."""
    before = random_state()
    seed_all(seed)
    try:
        yield
    finally:
        set_random_state(before)


def _cuda_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
