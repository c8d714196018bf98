"""The covariances of one layer's heads, out of the sums of a pass, and the ridge they need."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.lenses.statistics import Statistics


class Covariances(NamedTuple):
    """In the notation of `Statistics`, in float64."""

    mean: Float[Tensor, "head d_head"]
    """Of z."""
    zz: Float[Tensor, "head d_head d_head"]
    zf: Float[Tensor, "head d_head d_model"]
    zu: Float[Tensor, "head d_head d_model"]

    @classmethod
    def of(cls, statistics: Statistics, layer: int) -> Covariances:
        """Those of one layer."""
        return cls(
            mean=statistics.mean(f"{layer}.z"),
            zz=statistics.covariance(layer, "zz"),
            zf=statistics.covariance(layer, "zf"),
            zu=statistics.covariance(layer, "zu"),
        )


def ridged(
    zz: Float[Tensor, "head d_head d_head"], ridge: float
) -> Float[Tensor, "head d_head d_head"]:
    """Covariances with a ridge, relative to the mean variance of each head.

    >>> ridged(torch.tensor([[[3.0, 1.0], [1.0, 5.0]]]), 0.5)
    tensor([[[5., 1.],
             [1., 7.]]])
    """
    variance = zz.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None]
    # A head that never says anything (all zero) gets a zero lens instead of a division by zero;
    # the floor is one whose inverse float32 can hold.
    floor = torch.finfo(torch.float32).tiny ** 0.5
    identity = torch.eye(zz.shape[-1], dtype=zz.dtype, device=zz.device)
    return zz + (ridge * variance + floor) * identity


def damped_inverse(
    information: Float[Tensor, "d_model d_model"], damping: float
) -> Float[Tensor, "d_model d_model"]:
    """The inverse of a Fisher information, damped relative to its largest eigenvalue."""
    largest = torch.linalg.eigvalsh(information)[-1]
    identity = torch.eye(len(information), dtype=information.dtype, device=information.device)
    return torch.linalg.inv(information + damping * largest * identity)
