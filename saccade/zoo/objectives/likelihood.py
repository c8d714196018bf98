"""Losses based on the likelihood of the targets: cross-entropy, ranking, cloze."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.zoo.attention.masks import masked_log_softmax
from saccade.zoo.fast.cross_entropy import cross_entropy
from saccade.zoo.fast.forms import is_fast


class TokenLoss(NamedTuple):
    """Loss and negative log-likelihood of a batch of tokens."""

    loss: Float[Tensor, ""]
    """To minimise: mean nats per token, with label smoothing."""
    nll: Float[Tensor, ""]
    """To report: summed nats, without label smoothing or gradient."""
    n_tokens: int


def token_loss(
    logits: Float[Tensor, "*at d_vocab"],
    targets: Int[Tensor, "*at"],
    mask: Bool[Tensor, "*at"] | None = None,
    *,
    smoothing: float = 0.0,
) -> TokenLoss:
    """Cross-entropy with label smoothing.

    Teacher forcing is exactly this: ``log p(y) = sum_t log p(y_t | y_<t)`` with the true y as
    input. Label smoothing is Szegedy et al., 2016 (https://arxiv.org/abs/1512.00567), section 7,
    with their uniform distribution over all symbols, as `torch.nn.functional.cross_entropy` has it;
    some translators exclude the padding token and the target.

    A model that projects only its real positions to the vocabulary (``hidden[mask]``) saves that
    work for padding: any number of axes is allowed, also one.

    Args:
        mask: True where a symbol counts; all of them unless given.
        smoothing: The share of each target that is spread uniformly over the vocabulary.

    >>> token_loss(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.long)).nll
    tensor(8.3178)
    """
    n_tokens = targets.numel() if mask is None else int(mask.sum())
    n = max(1, n_tokens)
    if is_fast():
        return TokenLoss(*cross_entropy(logits, targets, mask, smoothing, n), n_tokens)
    if mask is not None:
        logits, targets = logits[mask], targets[mask]
    log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    nll = -log_probs.gather(-1, targets[..., None])[..., 0]
    # With smoothing 0 the term is skipped: 0 times a log-probability of -inf is NaN.
    smoothed = (1 - smoothing) * nll - smoothing * log_probs.mean(-1) if smoothing else nll
    return TokenLoss(smoothed.sum() / n, nll.detach().sum(), n_tokens)


# The likelihood of whole sequences, from logits at real positions only.


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


# Ranking: the correct candidate should score higher than all others by a margin.


def margin_ranking(
    scores: Float[Tensor, "*at candidate"],
    right: Int[Tensor, "*at"],
    mask: Bool[Tensor, "*at candidate"] | None = None,
    *,
    margin: float = 0.1,
) -> Float[Tensor, "*at"]:
    """``sum over wrong f' of max(0, margin - s(f) + s(f'))``.

    Weston et al., 2015 (https://arxiv.org/abs/1410.3916), section 3.1, equations 6 to 8, with their
    margin of 0.1. They sample one wrong candidate at a time; we use all.

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
    softmax of Hermann et al., 2015 to the possible answers.

    >>> import torch
    >>> cloze_loss(torch.zeros(1, 5), torch.tensor([2]), torch.tensor([[0, 1, 1, 0, 0]]).bool())
    tensor(0.6931)
    """
    log_probs = masked_log_softmax(logits, candidates)
    return -log_probs.gather(1, answers[:, None]).mean()
