"""The likelihood of the right symbols, with label smoothing."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class TokenLoss(NamedTuple):
    """How well symbols were predicted."""

    loss: Float[Tensor, ""]
    """To minimise: mean nats a symbol, smoothed."""
    nll: Float[Tensor, ""]
    """To report: nats of all symbols, not smoothed, without gradient."""
    n_tokens: int


def token_loss(
    logits: Float[Tensor, "*at d_vocab"],
    targets: Int[Tensor, "*at"],
    mask: Bool[Tensor, "*at"] | None = None,
    *,
    smoothing: float = 0.0,
) -> TokenLoss:
    """Cross-entropy with targets of which a share is spread evenly over all symbols.

    Teacher forcing is this and no more: ``log p(y) = sum_t log p(y_t | y_<t)`` with the true y put
    in. Label smoothing is Szegedy et al., 2016 (https://arxiv.org/abs/1512.00567), section 7, with
    their uniform distribution over all symbols, as `torch.nn.functional.cross_entropy` has it;
    some translators leave out the padding symbol and the right one.

    A model that projects only its real positions to the vocabulary (``hidden[mask]``) saves that
    work for padding: any number of axes will do, also one.

    Args:
        mask: True where a symbol counts; all of them unless given.
        smoothing: The share of each target that is spread.

    >>> token_loss(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.long)).nll
    tensor(8.3178)
    """
    n_tokens = targets.numel() if mask is None else int(mask.sum())
    weight = None if mask is None else mask.flatten().to(logits.dtype)
    loss, nll = _CrossEntropy.apply(
        logits.flatten(0, -2), targets.flatten(), weight, smoothing, max(1, n_tokens)
    )
    return TokenLoss(loss, nll, n_tokens)


class _CrossEntropy(torch.autograd.Function):
    """The mean smoothed and the summed plain cross-entropy, with their gradient by hand.

    ``softmax - target``, made in one piece of memory of the size of the logits where autograd makes
    three: for small models with large vocabularies that is a good part of a training step.
    """

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
            # Not a product: the loss of a position that does not count may be infinite.
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
