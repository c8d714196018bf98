"""What can be asked of a trained system, and what it answers; the commands' options are these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """How a translation is searched for."""

    beam: int = 5
    """How many hypotheses are kept; 1 is greedy."""
    length_penalty: float = 1.0
    """0 prefers short translations; 1 weighs by the mean log-probability of a token."""
    max_length: int = 100
    """A translation ends here at the latest, in tokens."""


class Translated(NamedTuple):
    """A translation."""

    text: str
    log_prob: float
    """Of the whole of it."""


@dataclass(frozen=True, kw_only=True)
class RescoreOptions:
    """How translations are put into a new order by a second model."""

    n_best: int = 12
    """So many translations of each sentence are looked at again."""
    weight: float = 0.5
    """How much the second model counts: 0 not at all, 1 alone."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """How text is drawn from a system."""

    length: int = 300
    """How many symbols (characters, words, ...)."""
    temperature: float = 1.0
    """Below 1 keeps to what is likely, above 1 dares more."""
    top_k: int = 0
    """Draw among the so many likeliest symbols only; 0: among all."""
    prompt: str = ""
    """What the text goes on from."""
    seed: int = 0
    """Another seed, another text."""
