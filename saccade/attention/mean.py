"""Look everywhere alike: the baseline that knows nothing of the content."""

from jaxtyping import Bool, Float
from torch import Tensor

from saccade.attention.select import Select, Selected


class MeanSelect(Select):
    """Average pooling: every key has the weight 1/n, whatever its score.

    >>> import torch
    >>> mask = torch.tensor([[[True, True, False]]])
    >>> MeanSelect()(torch.tensor([[[9.0, -9.0, 0.0]]]), mask).weights
    tensor([[[0.5000, 0.5000, 0.0000]]])
    """

    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
    ) -> Selected:
        """Weights for every query; of the scores only the shape is used."""
        count = mask.sum(-1, keepdim=True).clamp_min(1)
        return Selected((mask.to(scores.dtype) / count).expand_as(scores))
