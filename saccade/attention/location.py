"""Scores that know where a key stands: by its position alone, or by content and position both."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.attention.score import Score
from saccade.errors import UsageError


class LocationScore(Score):
    """Score positions from the query alone, whatever stands there: ``scores(q) = W q``.

    Luong et al., 2015 (https://arxiv.org/abs/1508.04025), equation 9, "location". W has a row for
    each position, so a sequence can be no longer than ``max_length``.
    """

    def __init__(self, *, d_query: int, max_length: int) -> None:
        super().__init__()
        self.position_proj = nn.Linear(d_query, max_length, bias=False)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        projected: Float[Tensor, "batch key_pos d_key"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of as many positions as there are keys."""
        n, max_length = projected.shape[1], self.position_proj.out_features
        if n > max_length:
            raise UsageError(
                f"the location score reaches {max_length} positions, got {n} keys",
                hint=f"make it with max_length={n} or more, or leave out longer sequences",
            )
        return nn.functional.linear(query, self.position_proj.weight[:n])


class MixedScore(Score):
    """Score content, and where the step before looked: ``v . tanh(W q + U k + V f + b)``.

    Chorowski et al., 2015 (https://arxiv.org/abs/1506.07503), equations 8 and 9: the features
    ``f = F * previous`` are the weights of the step before, convolved with learnt filters, so that
    the score can say "a little further on". One query at a time, since each needs the weights of
    the one before; at the first step nothing was looked at, and f is zero.
    """

    looks_back: ClassVar[bool] = True

    def __init__(
        self, *, d_query: int, d_key: int, d_hidden: int, n_filters: int = 10, reach: int = 12
    ) -> None:
        """Set up.

        Args:
            n_filters: 10 in the paper's section 4.
            reach: How many positions to each side a filter covers. The paper's 100 spans about a
                second of speech; 12 is half a sentence.
        """
        super().__init__()
        self.query_proj = nn.Linear(d_query, d_hidden, bias=False)
        self.key_proj = nn.Linear(d_key, d_hidden)
        self.filters = nn.Conv1d(1, n_filters, 2 * reach + 1, padding=reach, bias=False)
        self.feature_proj = nn.Linear(n_filters, d_hidden, bias=False)
        self.score_proj = nn.Linear(d_hidden, 1, bias=False)

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos d_hidden"]:
        """``U k + b`` of every key."""
        return self.key_proj(keys)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        projected: Float[Tensor, "batch key_pos d_hidden"],
        previous: Float[Tensor, "batch 1 key_pos"] | None = None,
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for one query.

        Args:
            previous: The weights of the step before; None at the first step.
        """
        if query.shape[1] != 1:
            raise UsageError(
                f"the mixed score takes one query at a time, got {query.shape[1]}",
                hint="call it step by step, each time with the weights of the step before",
            )
        hidden = self.query_proj(query) + projected
        if previous is not None:
            features = self.filters(previous).mT  # [batch, key_pos, n_filters]
            hidden = hidden + self.feature_proj(features)
        return self.score_proj(torch.tanh(hidden)).mT
