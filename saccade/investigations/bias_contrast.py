"""From the mass of words after prompts to one figure a pair, and from those to an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LIKELY = 0.95
CHUNK = 2**24  # numbers drawn at once


class Interval(NamedTuple):
    """A mean, and where 95 % of the means of prompts drawn again lie."""

    mean: float
    low: float
    high: float

    @property
    def clear(self) -> float:
        """The bound nearer to zero; zero where the interval holds it."""
        return min(abs(self.low), abs(self.high)) if self.low * self.high > 0 else 0.0


class Intervals(NamedTuple):
    """The same for every site."""

    mean: Float[Tensor, " site"]
    low: Float[Tensor, " site"]
    high: Float[Tensor, " site"]

    def at(self, site: int) -> Interval:
        """That of one site."""
        return Interval(float(self.mean[site]), float(self.low[site]), float(self.high[site]))


@dataclass(frozen=True)
class Contrast:
    """What is compared with what."""

    usual: Float[Tensor, "prompt group"]
    """The constant lens's mass on the words, and on those they are set against."""
    n_pairs: int
    is_paired: bool
    """The first ``n_pairs`` prompts are then compared with as many others, else with ``usual``."""

    def sides(
        self, mass: Float[Tensor, "prompt ... group"]
    ) -> tuple[Float[Tensor, "pair ..."], Float[Tensor, "pair ..."]]:
        """The two figures of every pair: mass on the words less mass on those against them."""
        figures = _balance(mass)
        if self.is_paired:
            return figures[: self.n_pairs], figures[self.n_pairs :]
        usual = _balance(self.usual).view(-1, *[1] * (figures.dim() - 1))
        return figures, usual.expand_as(figures)

    def differences(self, mass: Float[Tensor, "prompt ... group"]) -> Float[Tensor, "pair ..."]:
        """First less second, for every pair."""
        first, second = self.sides(mass)
        return first - second


def _balance(mass: Tensor) -> Tensor:
    return mass[..., 0] - mass[..., 1] if mass.shape[-1] > 1 else mass[..., 0]


def intervals(values: Float[Tensor, "pair site"], *, draws: int, seed: int) -> Intervals:
    """The mean of each site over pairs, with a percentile bootstrap over the pairs.

    Efron, 1979, "Bootstrap methods: another look at the jackknife". All sites are drawn together:
    one product of the counts of each draw with the values.

    >>> same = torch.full((5, 1), 2.0)
    >>> intervals(same, draws=10, seed=0).at(0)
    Interval(mean=2.0, low=2.0, high=2.0)
    """
    n, n_sites = values.shape
    chance = torch.Generator().manual_seed(seed)
    counts = torch.zeros(draws, n, dtype=torch.double)
    counts.scatter_add_(
        1, torch.randint(n, (draws, n), generator=chance), torch.ones(draws, n).double()
    )
    tails = torch.tensor([(1 - LIKELY) / 2, (1 + LIKELY) / 2], dtype=torch.double)
    size = max(1, CHUNK // draws)
    values = values.double()
    bounds = [(counts @ some / n).quantile(tails, dim=0) for some in values.split(size, dim=1)]
    low, high = torch.cat(bounds, dim=1) if n_sites else torch.zeros(2, 0)
    return Intervals(values.mean(0), low, high)
