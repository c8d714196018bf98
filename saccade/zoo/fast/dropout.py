"""Dropout whose mask is cheap to draw on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from saccade.zoo.fast.forms import is_fast

LEVELS = 256  # values of a random byte


class Dropout(nn.Module):
    """Zero each element with probability ``p`` in training, and scale the others up accordingly.

    Srivastava et al., 2014. The same as `torch.nn.Dropout`, which on a CPU draws a float for every
    element; in a small Transformer that is a quarter of a training step. Here each element takes a
    random byte, so ``p`` is rounded to a multiple of 1/256 (0.3 becomes 0.3008, and the scale
    matches it), and it takes a sixth of the time. Other devices use `torch.nn.functional.dropout`.

    >>> dropped = Dropout(0.5)(torch.ones(1000))
    >>> sorted(set(dropped.tolist()))
    [0.0, 2.0]
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Drop some of ``x``; none in eval mode."""
        if not self.training or self.p == 0:
            return x
        if x.device.type == "cpu" and is_fast():
            return _Dropped.apply(x, round(self.p * LEVELS))
        return functional.dropout(x, self.p)

    def extra_repr(self) -> str:
        """The dropout rate."""
        return f"p={self.p}"


class _Dropped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, n_dropped: int) -> Tensor:
        # A float mask: a product of bool and float takes three times as long as this conversion.
        kept = (_random_bytes(x.numel()) >= n_dropped).view(x.shape).to(x.dtype)
        ctx.scale = LEVELS / (LEVELS - n_dropped) if n_dropped < LEVELS else 0.0
        kept.mul_(ctx.scale)
        ctx.save_for_backward(kept)
        return x * kept

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return grad_outputs[0] * kept, None


def _random_bytes(n: int) -> Tensor:
    words = torch.empty((n + 7) // 8, dtype=torch.int64)
    # The full range: without these bounds the sign bit, part of every eighth byte, would not be
    # random.
    return words.random_(-(2**63), None).view(torch.uint8)[:n]
