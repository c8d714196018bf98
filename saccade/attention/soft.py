"""Look everywhere at once, more where the score is higher."""

from jaxtyping import Bool, Float
from torch import Tensor

from saccade.attention.masks import masked_softmax
from saccade.attention.select import Select, Selected


class SoftSelect(Select):
    """Softmax over the keys.

    Bahdanau et al., 2015 (https://arxiv.org/abs/1409.0473), equation 6. Deterministic, with an
    exact gradient, and every key is read.

    >>> import torch
    >>> SoftSelect()(torch.zeros(1, 1, 4), torch.ones(1, 1, 4, dtype=torch.bool)).weights
    tensor([[[0.2500, 0.2500, 0.2500, 0.2500]]])
    """

    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
    ) -> Selected:
        """Weights for every query."""
        return Selected(masked_softmax(scores, mask))
