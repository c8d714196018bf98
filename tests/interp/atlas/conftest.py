"""Shared by the tests of atlas/: tiny models of the families of the tests of heads/.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

# Tests are no package; families.py is beside the tests of heads/.
sys.path.insert(0, str(Path(__file__).parent.parent / "heads"))

from families import tiny


@pytest.fixture(scope="session")
def opened() -> Any:
    """The tiny model of a family, with no two weights the same; made once."""
    from saccade.interp.heads.model import wrap_model

    made: dict[str, Any] = {}

    def make(family: str) -> Any:
        if family not in made:
            hf = copy.deepcopy(tiny(family))
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for weight in hf.parameters():
                    weight.add_(0.3 * weight.std() * torch.randn(weight.shape, generator=generator))
            made[family] = wrap_model(hf, None, name=family)
        return made[family]

    return make
