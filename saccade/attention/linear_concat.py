"""A linear function of query and key side by side: the smallest score there is."""

from jaxtyping import Float
from torch import Tensor, nn

from saccade.attention.score import Score


class LinearConcatScore(Score):
    """Weigh the numbers of query and key and add them up: ``score(q, k) = w . [q; k]``.

    The worked example by which attention is often taught, with w = (-1, ..., -1, 2, ..., 2). The
    sum falls apart into ``w_q . q + w_k . k``, and a softmax over keys does not see what all keys
    have in common: **the weights do not depend on the query**. `AdditiveScore` is this with a tanh
    in between, which is what lets a query and a key meet.
    """

    def __init__(self, *, d_query: int, d_key: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(d_query, 1, bias=False)
        self.key_proj = nn.Linear(d_key, 1, bias=False)

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos 1"]:
        """The key's share of the score."""
        return self.key_proj(keys)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        projected: Float[Tensor, "batch key_pos 1"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query."""
        return self.query_proj(query) + projected.mT
