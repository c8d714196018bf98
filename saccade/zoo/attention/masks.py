"""Which positions may be attended, and a softmax over those only.

A mask is bool and True means "may attend", everywhere in the package. A row that may attend to
nothing gets zeros, never NaN, in the forward and the backward pass.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.zoo.fast.forms import is_fast
from saccade.zoo.fast.soft_attention import softmax_of_attended


def padding_mask(lengths: Int[Tensor, " batch"], n: int) -> Bool[Tensor, "batch pos"]:
    """True for the first ``lengths`` of ``n`` positions, False for the padding after them.

    >>> padding_mask(torch.tensor([1, 3]), 3).int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.arange(n, device=lengths.device) < lengths[:, None]


def causal_mask(n: int, device: torch.device | None = None) -> Bool[Tensor, "pos pos"]:
    """True where a position (row) may attend to itself or an earlier one.

    Vaswani et al., 2017 (https://arxiv.org/abs/1706.03762), section 3.2.3.

    >>> causal_mask(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()


def masked_softmax(
    scores: Float[Tensor, "*shape"], mask: Bool[Tensor, "*#shape"]
) -> Float[Tensor, "*shape"]:
    """Softmax over the last axis, of the positions that may be attended; the others get 0 exactly.

    >>> masked_softmax(torch.zeros(2, 3), padding_mask(torch.tensor([2, 0]), 3))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    if is_fast():
        return softmax_of_attended(scores, mask)
    return _filled(scores, mask).softmax(-1) * mask


def masked_log_softmax(
    scores: Float[Tensor, "*shape"], mask: Bool[Tensor, "*#shape"]
) -> Float[Tensor, "*shape"]:
    """The logarithm of `masked_softmax`: -inf where nothing may be attended.

    >>> masked_log_softmax(torch.zeros(2), torch.tensor([True, False]))
    tensor([0., -inf])
    """
    return _filled(scores, mask).log_softmax(-1).masked_fill(~mask, -torch.inf)


def _filled(scores: Tensor, mask: Tensor) -> Tensor:
    # The lowest finite number, not -inf: a row of only -inf gives 0/0, and NaN in the gradient.
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
