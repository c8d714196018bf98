"""Cross-entropy over a vocabulary, with a hand-written gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function


class CrossEntropy(NamedTuple):
    """Loss and negative log-likelihood of a batch of tokens."""

    loss: Float[Tensor, ""]
    """Mean, with label smoothing."""
    nll: Float[Tensor, ""]
    """Sum, without label smoothing or gradient."""


def cross_entropy(
    logits: Float[Tensor, "*at d_vocab"],
    targets: Int[Tensor, "*at"],
    mask: Bool[Tensor, "*at"] | None,
    smoothing: float,
    n_tokens: int,
) -> CrossEntropy:
    """Cross-entropy whose gradient ``softmax - target`` needs one buffer of the size of the logits.

    Autograd allocates three: a large part of a training step for small models with large
    vocabularies.

    Plain form: `saccade.zoo.objectives.likelihood.token_loss`.

    Args:
        mask: True where a token counts; None: everywhere.
        n_tokens: Divisor of the mean.
    """
    weight = None if mask is None else mask.flatten().to(logits.dtype)
    return CrossEntropy(
        *_CrossEntropy.apply(logits.flatten(0, -2), targets.flatten(), weight, smoothing, n_tokens)
    )


class _CrossEntropy(Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "n d_vocab"],
        targets: Int[Tensor, " n"],
        weight: Float[Tensor, " n"] | None,
        smoothing: float,
        n_tokens: int,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        # Half-precision sums over a vocabulary are too coarse.
        exact = torch.promote_types(logits.dtype, torch.float32)
        log_probs = logits.log_softmax(-1, dtype=exact)
        ctx.save_for_backward(log_probs, targets, weight)
        ctx.smoothing, ctx.n_tokens, ctx.dtype = smoothing, n_tokens, logits.dtype
        nll = -log_probs.gather(1, targets[:, None])[:, 0]
        loss = nll if smoothing == 0 else nll.lerp(-log_probs.mean(-1), smoothing)
        if weight is not None:
            # Not a product: the loss of a masked position may be infinite.
            loss, nll = (torch.where(weight > 0, each, 0.0) for each in (loss, nll))
        nll = nll.sum()
        ctx.mark_non_differentiable(nll)
        return loss.sum() / n_tokens, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        log_probs, targets, weight = ctx.saved_tensors
        gradient = log_probs.exp()  # not in place: the graph may be used a second time
        if ctx.smoothing:
            gradient.sub_(ctx.smoothing / gradient.shape[1])
        right = gradient.new_full((len(targets), 1), ctx.smoothing - 1)
        gradient.scatter_add_(1, targets[:, None], right)
        scale = gradients[0] / ctx.n_tokens
        gradient.mul_(scale if weight is None else (weight * scale)[:, None])
        return gradient.to(ctx.dtype), None, None, None, None
