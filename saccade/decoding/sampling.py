"""Sampling: symbols drawn from what the model predicts."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.stepper import Stepper
from saccade.decoding.stopping import ending
from saccade.decoding.walk import walk
from saccade.errors import UsageError


def sample(
    stepper: Stepper,
    source: Any,
    *,
    max_length: int,
    n: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> list[list[Hypothesis]]:
    """Draw ``n`` sequences a sentence; their ``log_prob`` is the model's own, at temperature 1.

    Args:
        max_length: The most symbols, an end symbol counted; what is longer is cut there.
        temperature: Divides the log-probabilities: below 1 is more careful, above more daring.
        top_k: Draw among this many of the likeliest symbols only.
    """
    check_draw(temperature=temperature, top_k=top_k)
    return walk(
        stepper,
        source,
        choose=partial(draw, temperature=temperature, top_k=top_k, generator=generator),
        end=partial(ending, is_sampled=True, generator=generator),
        max_length=max_length,
        n=n,
    )


def check_draw(*, temperature: float, top_k: int | None) -> None:
    """Refuse what nothing can be drawn with."""
    if temperature <= 0:
        raise UsageError(
            f"the temperature must be above 0, got {temperature}",
            hint="for the likeliest symbol at every step use greedy search",
        )
    if top_k is not None and top_k < 1:
        raise UsageError(
            f"top_k must be at least 1, got {top_k}", hint="leave it out to draw among all symbols"
        )


def draw(
    log_probs: Float[Tensor, "row d_vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " row"]:
    """One symbol a row, drawn with probability proportional to ``p ** (1 / temperature)``."""
    symbols = None
    if top_k is not None and top_k < log_probs.shape[1]:
        log_probs, symbols = log_probs.topk(top_k, dim=-1)
    # The likeliest is brought to 1 first, so that a low temperature cannot make all of them 0.
    p = ((log_probs - log_probs.amax(-1, keepdim=True)) / temperature).exp()
    drawn = torch.multinomial(p, 1, generator=generator)
    return (drawn if symbols is None else symbols.gather(1, drawn))[:, 0]
