"""Walk over the memory from left to right, and stop at each step where the score says so."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.attention.select import Select, Selected


class MonotonicSelect(Select):
    """At each query, go on from the last key chosen, and stop at a key with probability sigmoid.

    Raffel et al., 2017 (https://arxiv.org/abs/1704.00784). In training the weights are the expected
    ones (equations 8 and 9): ``w[j] = p[j] * sum_{k<=j} w_before[k] * prod_{k<=l<j} (1 - p[l])``,
    with noise on the scores that teaches them to be decided (section 2.5). In evaluation the walk
    itself (algorithm 1): stop at the first key with p >= 1/2.

    The weights of a query may sum to less than 1: the rest has walked off the end, and reads
    nothing from then on. The paper computes equation 9 by cumulative products, which underflow; we
    sum the logarithms of ``1 - p`` and exponentiate differences, none of them positive.
    """

    looks_back: ClassVar[bool] = True

    def __init__(self, *, noise: float = 1.0, offset: float = -4.0) -> None:
        """Set up.

        Args:
            noise: Standard deviation of what is added to scores in training.
            offset: Start of the learnt number added to all scores (the paper's r, section 2.4):
                well below 0, because a walk that stops at every key never sees the later ones.
        """
        super().__init__()
        self.noise = noise
        self.offset = nn.Parameter(torch.tensor(offset))

    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
        previous: Float[Tensor, "batch 1 key_pos"] | None = None,
    ) -> Selected:
        """Weights for every query, each from those of the query before it.

        Args:
            previous: The weights before the first of these queries; None to start at the left.
        """
        scores = scores + self.offset
        before = scores.new_zeros(scores.shape[0], scores.shape[2])
        if previous is None:
            before[:, 0] = 1.0
        else:
            before = previous[:, 0]
        if not self.training:
            return Selected(_walk(scores.detach() >= 0, mask, before))
        scores = scores + self.noise * torch.randn_like(scores)
        return Selected(_expected(scores, mask, before))


def _expected(scores: Tensor, mask: Tensor, before: Tensor) -> Tensor:
    stop = scores.sigmoid() * mask  # nobody stops at a masked key, all walk past it
    passed = functional.logsigmoid(-scores).masked_fill(~mask, 0.0)  # log(1 - p)
    passed_before = passed.cumsum(-1) - passed  # over all keys left of this one
    n_keys = scores.shape[-1]
    leftwards = torch.ones(n_keys, n_keys, dtype=torch.bool, device=scores.device).triu(1).mT
    weights = []
    for query in range(scores.shape[1]):
        c = passed_before[:, query]
        # arrive[k, j]: the probability of reaching j from k without a stop.
        steps = (c[:, None, :] - c[:, :, None]).masked_fill(leftwards, -torch.inf)
        reached = (before[:, None] @ steps.exp()).squeeze(1)  # [batch, key_pos]
        before = stop[:, query] * reached
        weights.append(before)
    return torch.stack(weights, 1)


def _walk(stops: Tensor, mask: Tensor, before: Tensor) -> Tensor:
    stops = stops & mask
    weights = []
    for query in range(stops.shape[1]):
        candidates = stops[:, query] & (before.cumsum(-1) > 0)
        first = candidates & (candidates.cumsum(-1) == 1)
        before = first.to(before.dtype)
        weights.append(before)
    return torch.stack(weights, 1)
