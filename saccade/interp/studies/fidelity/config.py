"""Options of a measurement of fidelity. Without torch, so that `--help` is fast."""

from __future__ import annotations

from dataclasses import dataclass

from saccade.store.schema import Seed


@dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """How much text heads are measured on, and in how many directions."""

    windows: int = 32
    """Number of windows of text on which each head is ablated and resampled."""
    window: int = 32
    """Tokens per window."""
    basis_windows: int = 4
    """Number of these windows on which the directions of the causal basis are measured."""
    directions: int = 64
    """Number of directions per head, at most d_head; 0 skips the causal basis."""
    control: int = 16
    """Number of random directions per head, as a control."""
    seed: Seed = 0
    """Seed of all random draws."""
