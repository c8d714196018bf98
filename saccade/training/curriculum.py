"""Easy things first: a training whose data gets harder when validation says that it may."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Data in stages; the next one begins when the scores of this one are good enough.

    A curriculum that goes by the clock needs none of this: let ``Job.batches`` look at the epoch.
    """

    n_stages: int
    """Stages are numbered from 0; the last is what the system is judged by."""
    batches: Callable[[int, int], Iterable[Any]]
    """``batches(epoch, stage)``: the same for the same two numbers."""
    is_passed: Callable[[Sequence[Mapping[str, float]], int], bool]
    """``is_passed(scores, stage)``: whether it is done, from its validations, the latest last."""
