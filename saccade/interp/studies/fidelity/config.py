"""What can be set about a measurement of fidelity. Without torch, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass

from saccade.store.schema import Seed


@dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """How much text the heads are tried on, and in how many directions."""

    windows: int = 32
    """How many windows of text each head is removed and resampled on."""
    window: int = 32
    """How many tokens each has."""
    basis_windows: int = 4
    """On how many of them the directions of the causal basis are tried."""
    directions: int = 64
    """How many directions of each head, at most as many as it has; 0 leaves the basis out."""
    control: int = 16
    """How many random directions, as a control."""
    seed: Seed = 0
    """Of everything that is drawn at random."""
