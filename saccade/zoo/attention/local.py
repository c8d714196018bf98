"""Local attention: each query sees only a window of positions around a centre."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.zoo.attention.attend import Attended, Attention, Memory, read
from saccade.zoo.attention.masks import masked_softmax
from saccade.zoo.attention.scores import Score
from saccade.zoo.attention.select import SoftSelect


class Viewed(NamedTuple):
    """What each query sees of the memory."""

    mask: Bool[Tensor, "batch query_pos key_pos"]
    """True inside the window."""
    nearness: Float[Tensor, "batch query_pos key_pos"] | None = None
    """Factor on the weights, 1 at the centre; None: the same for the whole window."""


class Window(nn.Module, ABC):
    """Positions ``centre - reach`` to ``centre + reach``; subclasses define the centre.

    Args:
        reach: Luong et al. use 10 (section 4.1).
    """

    def __init__(self, *, reach: int = 10) -> None:
        super().__init__()
        if reach < 1:
            raise UsageError(
                f"a window must reach 1 position or more, got {reach}",
                hint="Luong et al. use 10",
            )
        self.reach = reach

    @abstractmethod
    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        position: Int[Tensor, "batch query_pos"],
        mask: Bool[Tensor, "batch key_pos"],
    ) -> Viewed:
        """The windows of queries at these positions of their own sequence."""

    def distance(
        self, centre: Float[Tensor, "batch query_pos"], n_keys: int
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Position of each key minus the centre."""
        return torch.arange(n_keys, device=centre.device) - centre[:, :, None]


class AlignedWindow(Window):
    """A window that moves by one key per step: ``centre = t``.

    Luong et al., 2015 (https://arxiv.org/abs/1508.04025), section 3.2, "local-m": source and target
    are assumed to be aligned word by word. Where a target is longer than its source we keep the
    centre at the last key; the paper's window would leave the sentence and see nothing.
    """

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        position: Int[Tensor, "batch query_pos"],
        mask: Bool[Tensor, "batch key_pos"],
    ) -> Viewed:
        """Windows by position alone."""
        last = mask.sum(1, keepdim=True) - 1  # [batch, 1]
        distance = self.distance(position.minimum(last).to(query.dtype), mask.shape[1])
        return Viewed((distance.abs() <= self.reach) & mask[:, None])


class PredictedWindow(Window):
    """A window around a predicted position: ``centre = (n - 1) sigmoid(v . tanh(W q))``.

    Luong et al., equations 9 and 10, "local-p". The weights are multiplied by a Gaussian around the
    centre, with a standard deviation of half the reach, which gives the centre its gradient; so
    they sum to less than one. The paper counts positions from 1 to n, we from 0 to n - 1.
    """

    def __init__(self, *, d_query: int, reach: int = 10) -> None:
        super().__init__(reach=reach)
        self.hidden = nn.Linear(d_query, d_query, bias=False)
        self.place = nn.Linear(d_query, 1, bias=False)

    def centre(
        self, query: Float[Tensor, "batch query_pos d_query"], mask: Bool[Tensor, "batch key_pos"]
    ) -> Float[Tensor, "batch query_pos"]:
        """The centre for each query, a real number."""
        last = (mask.sum(1, keepdim=True) - 1).clamp_min(0)  # [batch, 1]
        return last * self.place(self.hidden(query).tanh())[..., 0].sigmoid()

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        position: Int[Tensor, "batch query_pos"],
        mask: Bool[Tensor, "batch key_pos"],
    ) -> Viewed:
        """Windows by query alone."""
        del position
        distance = self.distance(self.centre(query, mask), mask.shape[1])
        nearness = (-2 * (distance / self.reach).square()).exp()  # sigma = reach / 2
        return Viewed((distance.abs() <= self.reach) & mask[:, None], nearness)


class LocalAttention(nn.Module):
    """Softmax `Attention` in which each query sees a window; without a window, the whole memory.

    >>> from saccade.zoo.attention.scores import DotScore
    >>> attention = LocalAttention(DotScore(d_query=2, d_key=2), AlignedWindow(reach=1))
    >>> memory = attention.remember(torch.ones(1, 5, 2))
    >>> attention(torch.ones(1, 1, 2), memory, position=torch.tensor([[3]])).weights
    tensor([[[0.0000, 0.0000, 0.3333, 0.3333, 0.3333]]])
    """

    def __init__(self, score: Score, window: Window | None = None) -> None:
        super().__init__()
        self.whole = Attention(score, SoftSelect())
        self.window = window

    def remember(
        self,
        keys: Float[Tensor, "batch key_pos d_key"],
        *,
        mask: Bool[Tensor, "batch key_pos"] | None = None,
    ) -> Memory:
        """Project the keys, once for all queries; the values are the keys."""
        return self.whole.remember(keys, mask=mask)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        memory: Memory,
        *,
        position: Int[Tensor, "batch query_pos"],
    ) -> Attended:
        """Read the memory for every query.

        Args:
            position: Position of each query in its own sequence, from 0.
        """
        if self.window is None:
            return self.whole(query, memory)
        viewed: Viewed = self.window(query, position, memory.mask)
        weights = masked_softmax(self.whole.score(query, memory.keys), viewed.mask)
        if viewed.nearness is not None:
            weights = weights * viewed.nearness
        return Attended(read(weights, memory.values), weights)
