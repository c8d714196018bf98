"""The settings of a fit, separate from the fit so that `--help` needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from saccade.store.schema import Seed

Method = Literal["closed-form", "polish", "train", "published"]


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of a fit."""

    method: Method = "closed-form"
    """closed-form (one pass, no gradient steps), polish (KL steps from there), train (any
    objective), or published (the paper's dense lens, Adam, KL)."""
    kind: str = "head"
    """Lens kind: head, dense, jacobian, tuned, or your own."""
    objective: str = "kl"
    """Objective of train: kl, reverse-kl, cross-entropy, input, or your own."""
    tokens: int = 65536
    """Tokens of text to read."""
    window: int = 256
    """Tokens per window."""
    rows: int = 8
    """Windows per batch."""
    seed: Seed = 0
    """Seed of all random draws."""
    layers: tuple[int, ...] = ()
    """Layers to train. Default: all."""
    steps: int = 0
    """Gradient steps; 0 means the default of the method."""
    learning_rate: float = 0.0
    """Learning rate; 0 means the default of the method."""
    over: Literal["head", "layer"] = "head"
    """One loss per head (the paper), or one for the sum of a layer's lenses (its code)."""
    positions: Literal["all", "last"] = "all"
    """Train on all positions of a window, or only on the last (the paper's code)."""

    def given_numbers(self) -> dict[str, Any]:
        """The numbers of gradient steps that were given; the others are the method's own.

        >>> FitConfig(steps=7).given_numbers()
        {'steps': 7}
        """
        numbers = {"steps": self.steps, "learning_rate": self.learning_rate}
        return {name: value for name, value in numbers.items() if value}
