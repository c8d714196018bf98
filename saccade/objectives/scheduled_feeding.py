"""Scheduled feeding: from the true symbols to the network's own, little by little.

Bengio et al., 2015 (https://arxiv.org/abs/1506.03099), "scheduled sampling". At training step i
each symbol fed to a decoder is the true one with probability epsilon(i), else the one the decoder
has just predicted. Epsilon falls from 1, teacher forcing, by one of the schedules of section 2.4.
"""

import math

import torch
from jaxtyping import Int
from torch import Tensor


def linear_feeding(step: int, *, slope: float, start: float = 1.0, least: float = 0.0) -> float:
    """``max(least, start - slope * step)``.

    >>> linear_feeding(3, slope=0.25), linear_feeding(30, slope=0.25, least=0.1)
    (0.25, 0.1)
    """
    return max(least, start - slope * step)


def exponential_feeding(step: int, *, base: float) -> float:
    """``base ** step`` with a base below 1.

    >>> exponential_feeding(2, base=0.5)
    0.25
    """
    return base**step


def inverse_sigmoid_feeding(step: int, *, speed: float) -> float:
    """``speed / (speed + exp(step / speed))``: stays near 1, then falls around speed log speed.

    >>> round(inverse_sigmoid_feeding(0, speed=99.0), 2)
    0.99
    """
    # The same with the exponential in the divisor: it cannot overflow.
    falling = math.exp(-step / speed)
    return speed * falling / (speed * falling + 1)


def choose_fed(
    truth: Int[Tensor, " batch"],
    predicted: Int[Tensor, " batch"],
    *,
    probability: float,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " batch"]:
    """What a decoder is fed next: the true symbol with the given probability, else its own.

    A coin is tossed for each symbol, as in the paper, which found one coin a sentence much worse.

    Args:
        predicted: Drawn from the decoder's prediction, or the likeliest; the paper draws.
    """
    toss = torch.rand(truth.shape, generator=generator, device=truth.device)
    return torch.where(toss < probability, truth, predicted)
