"""What can be asked of a trained system, and what it answers; the commands' options are these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Ge, Le

from saccade.store.schema import Seed

MOST_BEAM = 1000
"""Hypotheses of a sentence: as many as Sutskever et al. rescored."""
MOST_LENGTH = 1_000_000
"""Symbols of one text."""


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """How a translation is searched for."""

    beam: Annotated[int, Ge(1), Le(MOST_BEAM)] = 5
    """How many hypotheses are kept; 1 is greedy."""
    length_penalty: Annotated[float, Ge(-10), Le(10)] = 1.0
    """0 prefers short translations; 1 weighs by the mean log-probability of a token."""
    max_length: Annotated[int, Ge(1), Le(MOST_LENGTH)] = 100
    """A translation ends here at the latest, in tokens."""


class Translated(NamedTuple):
    """A translation."""

    text: str
    log_prob: float
    """Of the whole of it."""


@dataclass(frozen=True, kw_only=True)
class RescoreOptions:
    """How translations are put into a new order by a second model."""

    n_best: Annotated[int, Ge(1), Le(MOST_BEAM)] = 12
    """So many translations of each sentence are looked at again."""
    weight: Annotated[float, Ge(0), Le(1)] = 0.5
    """How much the second model counts: 0 not at all, 1 alone."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """How text is drawn from a system."""

    length: Annotated[int, Ge(0), Le(MOST_LENGTH)] = 300
    """How many symbols (characters, words, ...)."""
    temperature: float = 1.0
    """Below 1 keeps to what is likely, above 1 dares more."""
    top_k: Annotated[int, Ge(0)] = 0
    """Draw among the so many likeliest symbols only; 0: among all."""
    prompt: str = ""
    """What the text goes on from."""
    seed: Seed = 0
    """Another seed, another text."""
