"""How surprised a language model is, in three units."""

from __future__ import annotations

import math
from typing import NamedTuple

from saccade.errors import UsageError


class Perplexity(NamedTuple):
    """Of one token (a word, a character), on average."""

    perplexity: float
    """Between how many equally likely tokens the model is as undecided."""
    nats: float
    bits: float
    n_tokens: int


def perplexity(nll: float, n_tokens: int) -> Perplexity:
    """From the summed negative log-likelihood (in nats) of all tokens.

    >>> perplexity(0.0, 10)
    Perplexity(perplexity=1.0, nats=0.0, bits=0.0, n_tokens=10)
    """
    if n_tokens < 1:
        raise UsageError("there is no token to score", hint="give some text")
    nats = nll / n_tokens
    # Beyond this a float cannot hold it; the model has learnt nothing anyway.
    value = math.exp(nats) if nats < 700 else math.inf
    return Perplexity(value, nats, nats / math.log(2), n_tokens)
