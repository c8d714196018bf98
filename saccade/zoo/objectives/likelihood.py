"""The likelihood of the right symbols, with label smoothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.zoo.attention.masks import masked_log_softmax


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


# The likelihood of whole sequences, from logits that were asked for at real positions only.


def sequence_log_probs(
    logits: Float[Tensor, "token d_vocab"],
    targets: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
) -> Float[Tensor, " batch"]:
    """``log p(y) = sum_t log p(y_t | y_<t)`` of each row.

    Args:
        logits: Of the positions where the mask is True, row after row, as a translator gives them.

    >>> import torch
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> sequence_log_probs(torch.zeros(3, 5), torch.zeros(2, 2, dtype=torch.long), mask)
    tensor([-3.2189, -1.6094])
    """
    right = targets[mask][:, None]
    of_token = logits.log_softmax(-1).gather(1, right)[:, 0]
    row = mask.nonzero()[:, 0]
    return of_token.new_zeros(len(mask)).index_add(0, row, of_token)


# Ranking: what is right should score higher than everything else, by a margin.


def margin_ranking(
    scores: Float[Tensor, "*at candidate"],
    right: Int[Tensor, "*at"],
    mask: Bool[Tensor, "*at candidate"] | None = None,
    *,
    margin: float = 0.1,
) -> Float[Tensor, "*at"]:
    """``sum over wrong f' of max(0, margin - s(f) + s(f'))``.

    Weston et al., 2015 (https://arxiv.org/abs/1410.3916), section 3.1, equations 6 to 8, with their
    margin of 0.1. They draw one wrong candidate at a time; we take all of them.

    Args:
        mask: True where a candidate counts; all of them unless given.

    >>> margin_ranking(torch.tensor([[1.0, 0.95, 0.0]]), torch.tensor([0]))
    tensor([0.0500])
    """
    own = scores.gather(-1, right[..., None])
    short = (margin - own + scores).relu().scatter(-1, right[..., None], 0.0)
    return (short if mask is None else torch.where(mask, short, 0.0)).sum(-1)


# The loss of a choice among candidates.


def cloze_loss(
    logits: Float[Tensor, "batch label"],
    answers: Int[Tensor, " batch"],
    candidates: Bool[Tensor, "batch label"],
) -> Float[Tensor, ""]:
    """The mean of ``-log p(answer)``, with p a softmax over the candidates alone.

    Chen et al., 2016 (https://arxiv.org/abs/1606.02858), section 4.1, equation 3, restrict the
    softmax of Hermann et al., 2015 to what could be the answer; the rest need not be unlearnt.

    >>> import torch
    >>> cloze_loss(torch.zeros(1, 5), torch.tensor([2]), torch.tensor([[0, 1, 1, 0, 0]]).bool())
    tensor(0.6931)
    """
    log_probs = masked_log_softmax(logits, candidates)
    return -log_probs.gather(1, answers[:, None]).mean()
