"""Look at one place, drawn by chance."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.attention.gumbel import gumbel_noise, one_hot_of_largest
from saccade.attention.masks import masked_log_softmax
from saccade.attention.select import Select, Selected


class HardSelect(Select):
    """Draw one key from the softmax of the scores; in evaluation take the likeliest.

    Xu et al., 2015, Show, Attend and Tell (https://arxiv.org/abs/1502.03044), section 4.1. The
    weights are one-hot and carry no gradient: what is learnt is learnt through ``log_prob``
    (REINFORCE), with ``entropy`` against a choice that hardens too early.
    """

    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
    ) -> Selected:
        """One-hot weights, how likely they were, and the entropy of the choice."""
        mask = mask.expand_as(scores)
        log_probs = masked_log_softmax(scores, mask)
        with torch.no_grad():
            # The largest of log p + Gumbel noise falls on each key with probability p.
            drawn = log_probs + gumbel_noise(scores) if self.training else log_probs
            weights = one_hot_of_largest(drawn, mask)
        finite = log_probs.masked_fill(~mask, 0.0)  # 0 * -inf would be NaN
        return Selected(
            weights=weights,
            log_prob=(weights * finite).sum(-1),
            entropy=-(finite.exp() * finite).sum(-1),
        )
