"""A small network as a score."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from saccade.attention.score import Score
from saccade.attention.unrounded import apply_unrounded

# exp(2 x 13 + 2 x 30) is just below the largest float32. And a query beyond 30 may be taken for 30:
# with any key up to 13 its tanh is 1 to the last digit.
LARGEST_KEY, LARGEST_QUERY = 13.0, 30.0


class AdditiveScore(Score):
    """Score each key against each query with a network of one hidden layer.

    Bahdanau et al., 2015 (https://arxiv.org/abs/1409.0473), appendix A.1.2:
    ``score(q, k) = v . tanh(W q + U k)``. No biases, as in the paper's equation. Unlike the paper
    we can score all queries at once.

    >>> score = AdditiveScore(d_query=3, d_key=5, d_hidden=7)
    >>> score(torch.randn(2, 1, 3), score.project(torch.randn(2, 11, 5))).shape
    torch.Size([2, 1, 11])
    """

    def __init__(self, *, d_query: int, d_key: int, d_hidden: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(d_query, d_hidden, bias=False)
        self.key_proj = nn.Linear(d_key, d_hidden, bias=False)
        self.score_proj = nn.Linear(d_hidden, 1, bias=False)

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos d_hidden"]:
        """``U k`` of every key."""
        return self.key_proj(keys)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        projected: Float[Tensor, "batch key_pos d_hidden"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query."""
        hidden = self.query_proj(query)
        return apply_unrounded(_Scores, hidden, projected, self.score_proj.weight)


class _Scores(Function):
    """``v . tanh(q + k)``, passing over the batch x keys x d_hidden numbers as seldom as it can.

    These passes are what a step costs beside its matrix products, as they wait for memory. The sum
    is squashed in place, and on the way back ``grad * slope`` is one pass, where autograd first
    writes out the outer product of the gradient and v.

    What is kept is ``s = sigmoid(2 (q + k))``, since ``tanh(x) = 2 sigmoid(2 x) - 1``: torch's
    sigmoid is much faster than its tanh on some CPUs, and ``2`` and ``- 1`` cost nothing
    where they are put, on the query, into the sum, and behind the product with v.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        squashed = squashed_sum(query[:, :, None], key[:, None])
        ctx.save_for_backward(squashed, v)  # [batch, query_pos, key_pos, d_hidden], [1, d_hidden]
        scores = torch.addmv(-v.sum(), squashed.flatten(0, 2), v[0], alpha=2)
        return scores.view(squashed.shape[:3])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides names
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (grad,) = grad_outputs  # [batch, query_pos, key_pos]
        squashed, v = ctx.saved_tensors
        for_v = torch.addmm(
            -grad.sum(), grad.reshape(1, -1), squashed.flatten(0, 2), alpha=2
        )  # [1, d_hidden]
        slope = torch.ops.aten.sigmoid_backward(grad[..., None], squashed)
        of_v = 4 * v
        for_query = slope.sum(2) * of_v
        slope *= of_v
        return for_query, slope.squeeze(1) if slope.shape[1] == 1 else slope.sum(1), for_v


def squashed_sum(
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    exponentials: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """``(1 + tanh(q + k)) / 2``, which is ``1 / (1 + exp(-2 q) exp(-2 k))``.

    Args:
        exponentials: Those of the keys, if `exponentials_of` has made them.

    >>> q, k = torch.randn(2, 1, 7), torch.randn(2, 5, 7)
    >>> for exponentials in (None, exponentials_of(k)):
    ...     s = squashed_sum(q, k, exponentials)
    ...     print(torch.allclose(2 * s - 1, torch.tanh(q + k), atol=1e-6))
    True
    True
    """
    if exponentials is None:
        return torch.add(2 * query, key, alpha=2).sigmoid_()
    of_query = query.clamp(-LARGEST_QUERY, LARGEST_QUERY).mul_(-2).exp_()
    return torch.addcmul(query.new_ones(()), of_query, exponentials).reciprocal_()


def exponentials_of(key: Float[Tensor, "..."]) -> Float[Tensor, "..."] | None:
    """``exp(-2 k)``, made once a sentence: no step needs exponentials of all its keys then.

    None where keys are so large that the product with a query's exponential might not be a number,
    and where no time would be saved. Without a gradient: that of a step goes to the keys.
    """
    if key.device.type != "cpu" or key.dtype not in (torch.float32, torch.float64):
        return None
    key = key.detach()
    low, high = key.aminmax()
    if not -LARGEST_KEY <= low <= high <= LARGEST_KEY:  # NaN is not, either
        return None
    return key.mul(-2).exp_()
