"""The cosine of the angle between query and key, times a learnt strength."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.attention.score import Score, check_same_size

# A vector shorter than this counts as shorter, not as a direction: at zero the slope of x/|x| is
# infinite, and with torch's own 1e-12 one silent key is enough to blow up a gradient.
SHORTEST = 1e-6


class CosineScore(Score):
    """Score a key by its direction alone: ``score(q, k) = strength * q . k / (|q| |k|)``.

    Graves et al., 2014, Neural Turing Machines (https://arxiv.org/abs/1410.5401), equations 5 and
    6. There a controller emits a strength for each query; here one is learnt, from 1 on, because
    this score stands alone. Without it no weight could be more than e^2 times another.
    """

    def __init__(self, *, d_query: int, d_key: int) -> None:
        super().__init__()
        check_same_size("cosine", d_query=d_query, d_key=d_key)
        self.log_strength = nn.Parameter(torch.zeros(()))

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos d_key"]:
        """The keys at length 1."""
        return functional.normalize(keys, dim=-1, eps=SHORTEST)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_key"],
        projected: Float[Tensor, "batch key_pos d_key"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query."""
        unit = functional.normalize(query, dim=-1, eps=SHORTEST)
        return (unit * self.log_strength.exp()) @ projected.mT
