"""The dot product, scaled so that its spread does not grow with the size of the keys."""

from math import sqrt

from jaxtyping import Float
from torch import Tensor

from saccade.attention.score import Score, check_same_size


class ScaledDotScore(Score):
    """The dot product over the root of the size: ``score(q, k) = q . k / sqrt(d_key)``.

    Vaswani et al., 2017 (https://arxiv.org/abs/1706.03762), section 3.2.1, equation 1. Numbers of
    unit variance have a dot product of variance d_key; dividing by its root keeps the softmax out
    of the region where it saturates.
    """

    def __init__(self, *, d_query: int, d_key: int) -> None:
        super().__init__()
        check_same_size("scaled-dot", d_query=d_query, d_key=d_key)
        self.scale = 1 / sqrt(d_key)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_key"],
        projected: Float[Tensor, "batch key_pos d_key"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query."""
        return (query * self.scale) @ projected.mT
