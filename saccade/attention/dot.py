"""The dot product as a score."""

from jaxtyping import Float
from torch import Tensor

from saccade.attention.score import Score, check_same_size


class DotScore(Score):
    """Score a key by its dot product with the query: ``score(q, k) = q . k``.

    Luong et al., 2015 (https://arxiv.org/abs/1508.04025), equation 8, "dot". No parameters.

    >>> import torch
    >>> keys = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]])
    >>> DotScore(d_query=2, d_key=2)(torch.tensor([[[2.0, 1.0]]]), keys)
    tensor([[[ 2., 10.]]])
    """

    def __init__(self, *, d_query: int, d_key: int) -> None:
        super().__init__()
        check_same_size("dot", d_query=d_query, d_key=d_key)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_key"],
        projected: Float[Tensor, "batch key_pos d_key"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query."""
        return query @ projected.mT
