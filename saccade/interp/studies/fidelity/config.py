"""The settings of a fidelity measurement; without torch, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from saccade.store.schema import Seed


@dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """How much text the interventions use, and how many directions."""

    windows: int = 32
    """Windows of text for ablation and resampling."""
    window: int = 32
    """Tokens per window."""
    gradients: Annotated[int, Ge(0), Le(16)] = 1
    """Points between activation and mean at which attribution takes the gradient: 1 is half-way, 2
    or more are Gauss-Legendre's; 0 leaves attribution out. Each costs two runs a head."""
    basis_windows: int = 4
    """Windows for the causal basis."""
    directions: int = 64
    """Directions per head, at most its dimension; 0 leaves the basis out."""
    control: int = 16
    """Random directions, as a control."""
    seed: Seed = 0
    """Seed of all random draws."""
