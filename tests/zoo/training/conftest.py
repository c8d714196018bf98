"""A job small enough to be trained again and again; `tiny.py` has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """Models this small lose more by sharing their work than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_job() -> Any:
    """Makes the tiny job anew, the same every time; changes go to its training or to the job."""
    from tiny import TINY

    from saccade.zoo.training.checkpoint import seed_all

    def make(*, sizes: dict[str, Any] | None = None, job: dict[str, Any] | None = None, **training):
        config = replace(TINY.settings.training, **training)
        settings = replace(TINY.settings, training=config, **(sizes or {}))
        seed_all(config.seed)
        return replace(TINY.build(settings, None), **(job or {}))

    return make


@pytest.fixture
def curve() -> Any:
    """What a log says of the way, without what a clock says."""
    from saccade.zoo.training.run_folder import read_log

    def read(folder: Path) -> list[dict[str, Any]]:
        clock = {"seconds", "units_per_second"}
        lines = read_log(Path(folder) / "log.jsonl")
        return [{k: v for k, v in line.items() if k not in clock} for line in lines]

    return read
