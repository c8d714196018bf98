"""The settings of an atlas, separate from the build so that `--help` needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge

from saccade.store.schema import Seed

WhichRoles: TypeAlias = Literal["quick", "all", "none"]


@dataclass(frozen=True, kw_only=True)
class AtlasConfig:
    """Settings of an atlas."""

    tokens: Annotated[int, Ge(2)] = 65536
    """Tokens of text for what heads look at."""
    window: Annotated[int, Ge(4)] = 256
    """Tokens per window."""
    every: Annotated[int, Ge(1)] = 16
    """Effects are measured at one position in so many."""
    seed: Seed = 0
    """Seed of the positions, and of the text if the model writes it."""
    roles: WhichRoles = "quick"
    """Roles to score: those of a few forward passes, or all whose data are there (minutes each)."""
