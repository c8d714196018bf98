"""The settings of a fidelity measurement; without torch, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass

from saccade.store.schema import Seed


@dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """How much text the interventions use, and how many directions."""

    windows: int = 32
    """Windows of text for ablation and resampling."""
    window: int = 32
    """Tokens per window."""
    basis_windows: int = 4
    """Windows for the causal basis."""
    directions: int = 64
    """Directions per head, at most its dimension; 0 leaves the basis out."""
    control: int = 16
    """Random directions, as a control."""
    seed: Seed = 0
    """Seed of all random draws."""
