"""What can be set about a fit. Apart from the fit itself, so that `--help` needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from saccade.store.schema import Seed

Method = Literal["closed-form", "polish", "train", "published"]


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What is fitted, how, and on how much text."""

    method: Method = "closed-form"
    """closed-form (one pass, no gradient steps), polish (KL steps from there), train (any
    objective), or published (the paper's dense lens, Adam, KL)."""
    kind: str = "head"
    """Which kind of lens: head, dense, jacobian, tuned, or one of your own."""
    objective: str = "kl"
    """What train aims at: kl, reverse-kl, cross-entropy, input, or one of your own."""
    tokens: int = 65536
    """How many tokens of text to read."""
    window: int = 256
    """How many tokens the model sees at once."""
    rows: int = 8
    """How many windows are read at once."""
    seed: Seed = 0
    """Of everything that is drawn at random."""
    layers: tuple[int, ...] = ()
    """Which layers to train; none means all."""
    steps: int = 0
    """How many gradient steps; 0 means the method's own number."""
    learning_rate: float = 0.0
    """Step size; 0 means the method's own."""
    over: Literal["head", "layer"] = "head"
    """Train one loss a head (the paper), or one for the sum of a layer's lenses (its code)."""
    positions: Literal["all", "last"] = "all"
    """Train on all positions of a window, or on the last only (the paper's code)."""

    def given_numbers(self) -> dict[str, Any]:
        """The numbers of gradient steps that were given; the others are the method's own.

        >>> FitConfig(steps=7).given_numbers()
        {'steps': 7}
        """
        numbers = {"steps": self.steps, "learning_rate": self.learning_rate}
        return {name: value for name, value in numbers.items() if value}
