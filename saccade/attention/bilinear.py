"""A dot product through a learnt matrix."""

from jaxtyping import Float
from torch import Tensor, nn

from saccade.attention.score import Score


class BilinearScore(Score):
    """Compare query and key through a matrix: ``score(q, k) = q . W k``.

    Luong et al., 2015 (https://arxiv.org/abs/1508.04025), equation 8, "general". Unlike a decoder
    that multiplies W with the query at each step, we multiply it with the keys, once a sentence:
    a step then costs no more than a plain dot product.
    """

    def __init__(self, *, d_query: int, d_key: int) -> None:
        super().__init__()
        self.key_proj = nn.Linear(d_key, d_query, bias=False)

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos d_query"]:
        """``W k`` of every key."""
        return self.key_proj(keys)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        projected: Float[Tensor, "batch key_pos d_query"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query."""
        return query @ projected.mT
