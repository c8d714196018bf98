"""Shared by the tests of effects/: the tiny models of every family of the tests of heads/.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

# Tests are no package; families.py is beside the tests of heads/.
sys.path.insert(0, str(Path(__file__).parent.parent / "heads"))

from families import FAMILIES, VOCAB, tiny

BATCH, LENGTH = 2, 11


@pytest.fixture(scope="session")
def wrapped() -> Any:
    """Wraps the tiny model of a family, once."""
    from saccade.interp.heads.model import wrap_model

    made: dict[str, Any] = {}

    def wrap(family: str) -> Any:
        if family not in made:
            made[family] = wrap_model(tiny(family), None, name=family)
        return made[family]

    return wrap


@pytest.fixture(params=list(FAMILIES))
def model(request: pytest.FixtureRequest, wrapped: Any) -> Any:
    """Each family in turn."""
    return wrapped(request.param)


@pytest.fixture
def llama(wrapped: Any) -> Any:
    return wrapped("llama")


@pytest.fixture
def ids() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, VOCAB, (BATCH, LENGTH), generator=generator)


@pytest.fixture
def replacement() -> Any:
    """Random values for every head of a model, the same at all positions."""
    from saccade.interp.effects.replacement import Replacement

    def make(model: Any) -> Any:
        generator = torch.Generator().manual_seed(5)
        return Replacement(
            "mean",
            {
                at.index: torch.randn(at.n_heads, at.d_head, generator=generator)
                for at in model.layers
            },
        )

    return make


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """Models this small lose more by sharing their work than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
