"""Inputs that the tests of attention share: sizes are distinct primes."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor


class Inputs(NamedTuple):
    query: Tensor  # [batch, query_pos, d_query]
    keys: Tensor  # [batch, key_pos, d_key]
    values: Tensor  # [batch, key_pos, d_value]
    mask: Tensor  # [batch, key_pos]


def new_inputs(*, d_query: int = 7, d_key: int = 11) -> Inputs:
    """Three sentences of 5, 3 and 1 keys, with two queries each."""
    generator = torch.Generator().manual_seed(0)
    return Inputs(
        query=torch.randn(3, 2, d_query, generator=generator),
        keys=torch.randn(3, 5, d_key, generator=generator),
        values=torch.randn(3, 5, 13, generator=generator),
        mask=torch.arange(5) < torch.tensor([5, 3, 1])[:, None],
    )


@pytest.fixture
def inputs() -> Inputs:
    return new_inputs()


@pytest.fixture
def make_inputs() -> Callable[..., Inputs]:
    return new_inputs
