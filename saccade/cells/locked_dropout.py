"""Dropout that leaves out the same features at every step of a sequence."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LockedDropout(nn.Module):
    """Some features at zero, the same ones in all steps of a row.

    Gal and Ghahramani, 2016 (https://arxiv.org/abs/1512.05287), section 4, for what goes from layer
    to layer; what goes from step to step inside a cell is left alone, since torch's kernels have no
    place for it. As usual, what is kept is scaled up, and nothing is dropped in eval mode.

    >>> dropped = LockedDropout(0.5)(torch.ones(2, 3, 100))
    >>> torch.equal(dropped[:, 0], dropped[:, 1]), sorted(set(dropped.flatten().tolist()))
    (True, [0.0, 2.0])
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, steps: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        """Drop features of each row."""
        if not self.training or not self.rate:
            return steps
        kept = torch.rand(len(steps), 1, steps.shape[2], device=steps.device) >= self.rate
        return steps * (kept.to(steps) / (1 - self.rate))

    def extra_repr(self) -> str:
        """The rate."""
        return f"rate={self.rate}"
