"""Tells two kinds of points apart by one direction, and what each feature adds to the verdict."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# Median absolute deviations of a normal variable are this much smaller than its deviation.
NORMAL_MAD = 1.4826
# Deviations beyond which a single feature counts no more: one odd token is not an attack.
FARTHEST = 5.0
# How far the covariance is drawn towards a multiple of the identity. Ledoit and Wolf's own share
# takes points for independent, and stretches of one text overlap; this is from the fitting side.
SHRUNK = 0.3


@dataclass(frozen=True)
class Discriminant:
    """Two Gaussians with one covariance: the log odds that a point is of the second kind.

    Fisher, 1936 (https://doi.org/10.1111/j.1469-1809.1936.tb02137.x). Unlike there, features are
    standardised by median and deviation and clipped, and the covariance is shrunk.
    """

    centre: Float[Tensor, " feature"]
    scale: Float[Tensor, " feature"]
    mean: Float[Tensor, " feature"]
    """Of the first kind, standardised and clipped."""
    weight: Float[Tensor, " feature"]
    half_way: float
    """How far the middle between the two kinds is from the first."""

    @classmethod
    def fit(
        cls, first: Float[Tensor, "n_first feature"], second: Float[Tensor, "n_second feature"]
    ) -> Discriminant:
        """Median and deviation of the first kind; means and covariance of both."""
        first, second = first.double(), second.double()
        centre = first.median(0).values
        spread = (first - centre).abs().median(0).values * NORMAL_MAD
        # A feature that never changes is left as it is; any change of it would be infinite.
        scale = torch.where(spread > 0, spread, torch.ones_like(spread))
        kinds = [_standard(each, centre, scale) for each in (first, second)]
        means = [each.mean(0) for each in kinds]
        centred = torch.cat([each - mean for each, mean in zip(kinds, means, strict=True)])
        apart = means[1] - means[0]
        weight = torch.linalg.solve(shrunk_covariance(centred), apart)
        return cls(centre, scale, means[0], weight, float(weight @ apart) / 2)

    def shares(self, points: Float[Tensor, "n feature"]) -> Float[Tensor, "n feature"]:
        """What each feature adds to the log odds, from the mean of the first kind on."""
        away = _standard(points.double(), self.centre, self.scale) - self.mean
        return away * self.weight

    def log_odds(self, points: Float[Tensor, "n feature"]) -> Float[Tensor, " n"]:
        """Above zero where the second kind is likelier, if both are as frequent."""
        return self.shares(points).sum(1) - self.half_way


def shrunk_covariance(
    centred: Float[Tensor, "n feature"], *, share: float = SHRUNK
) -> Float[Tensor, "feature feature"]:
    """The covariance, drawn towards a multiple of the identity.

    The form of Ledoit and Wolf, 2004 (https://doi.org/10.1016/S0047-259X(03)00096-4):
    ``share m I + (1 - share) S`` with m the mean variance.
    """
    found = centred.T @ centred / len(centred)
    level = found.diagonal().mean().clamp_min(1e-12)
    return (1 - share) * found + share * level * torch.eye(len(found), dtype=found.dtype)


def _standard(points: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
    return ((points - centre) / scale).clamp(-FARTHEST, FARTHEST)
