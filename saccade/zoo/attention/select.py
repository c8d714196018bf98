"""Select functions, from scores to weights: soft, Gumbel, hard, mean, monotonic."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError, suggest
from saccade.zoo.attention.masks import masked_log_softmax, masked_softmax


class Selected(NamedTuple):
    """Weights over the keys, and the log-probability and entropy of a sampled choice."""

    weights: Float[Tensor, "batch query_pos key_pos"]
    log_prob: Float[Tensor, "batch query_pos"] | None = None
    """Log-probability of the sampled choice; None for a deterministic select."""
    entropy: Float[Tensor, "batch query_pos"] | None = None
    """Entropy of the choice in nats, for an entropy bonus; None for a deterministic select."""


class Select(nn.Module, ABC):
    """``select(scores, mask) -> weights``.

    A masked key has weight 0 exactly, and a query that may attend to nothing has all weights 0.
    """

    looks_back: ClassVar[bool] = False
    """True: ``forward`` has a third argument, the weights of the previous step."""

    @abstractmethod
    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
    ) -> Selected:
        """Weights for every query."""


# Soft attention.


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


# A (nearly) one-hot sample that has a gradient.


class GumbelSelect(Select):
    """Softmax of scores plus Gumbel noise, at a temperature; one-hot in evaluation.

    Jang et al., 2017 (https://arxiv.org/abs/1611.01144), equation 2, and Maddison et al., 2017
    (https://arxiv.org/abs/1611.00712). As the temperature falls to 0 the weights become one-hot
    samples of the softmax; ``temperature`` is a plain attribute, for training to lower.

    With ``straight_through`` the weights are one-hot already in training and the gradient is that
    of the soft ones (Jang et al., section 2.2): biased, but the rest of the model gets the same
    inputs as in evaluation.
    """

    def __init__(self, *, temperature: float = 1.0, straight_through: bool = False) -> None:
        super().__init__()
        if not temperature > 0:
            raise UsageError(
                f"a temperature must be above 0, got {temperature}",
                hint="0.1 is already close to one-hot; straight_through=True is one-hot",
            )
        self.temperature = temperature
        self.straight_through = straight_through

    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
    ) -> Selected:
        """Weights for every query."""
        if not self.training:
            return Selected(one_hot_argmax(scores.detach(), mask))
        noisy = (scores + gumbel_noise(scores)) / self.temperature
        soft = masked_softmax(noisy, mask)
        if not self.straight_through:
            return Selected(soft)
        hard = one_hot_argmax(noisy.detach(), mask)
        # In this order the forward value is exactly one-hot: x - x is exactly 0.
        return Selected(hard + (soft - soft.detach()))


def gumbel_noise(like: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Standard Gumbel noise: the negative logarithm of an exponential variable."""
    return -torch.empty_like(like).exponential_().log_()


def one_hot_argmax(
    scores: Float[Tensor, "*shape key_pos"], mask: Bool[Tensor, "*#shape key_pos"]
) -> Float[Tensor, "*shape key_pos"]:
    """Weight 1 on the largest score that may be attended; all 0 where none may."""
    best = scores.masked_fill(~mask, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(-1, best, 1.0) * mask


# Hard attention: one sampled key.


class HardSelect(Select):
    """Draw one key from the softmax of the scores; in evaluation take the most likely.

    Xu et al., 2015, Show, Attend and Tell (https://arxiv.org/abs/1502.03044), section 4.1. The
    weights are one-hot and have no gradient: training uses ``log_prob`` (REINFORCE), with
    ``entropy`` against premature convergence.
    """

    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
    ) -> Selected:
        """One-hot weights, their log-probability, and the entropy of the choice."""
        mask = mask.expand_as(scores)
        log_probs = masked_log_softmax(scores, mask)
        with torch.no_grad():
            # The largest of log p + Gumbel noise falls on each key with probability p.
            drawn = log_probs + gumbel_noise(scores) if self.training else log_probs
            weights = one_hot_argmax(drawn, mask)
        finite = log_probs.masked_fill(~mask, 0.0)  # 0 * -inf would be NaN
        return Selected(
            weights=weights,
            log_prob=(weights * finite).sum(-1),
            entropy=-(finite.exp() * finite).sum(-1),
        )


# Uniform weights: the baseline that ignores content.


class MeanSelect(Select):
    """Average pooling: every key has the weight 1/n, regardless of its score.

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


# Monotonic attention: scan the memory from left to right, and stop where the score says so.


class MonotonicSelect(Select):
    """At each query, scan on from the last chosen key; stop at a key with probability sigmoid.

    Raffel et al., 2017 (https://arxiv.org/abs/1704.00784). In training the weights are the expected
    ones (equations 8 and 9): ``w[j] = p[j] * sum_{k<=j} w_before[k] * prod_{k<=l<j} (1 - p[l])``,
    with noise on the scores that pushes the probabilities towards 0 or 1 (section 2.5). In
    evaluation the scan is hard (algorithm 1): stop at the first key with p >= 1/2.

    The weights of a query may sum to less than 1: the rest has passed the end, and reads nothing
    from then on. The paper computes equation 9 by cumulative products, which underflow; we sum the
    logarithms of ``1 - p`` and exponentiate differences, none of them positive.
    """

    looks_back: ClassVar[bool] = True

    def __init__(self, *, noise: float = 1.0, offset: float = -4.0) -> None:
        """Set up.

        Args:
            noise: Standard deviation of the noise on scores in training.
            offset: Initial value of the learnt number added to all scores (the paper's r, section
                2.4): well below 0, because a scan that stops at every key never sees the later
                ones.
        """
        super().__init__()
        self.noise = noise
        self.offset = nn.Parameter(torch.tensor(offset))

    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
        previous: Float[Tensor, "batch 1 key_pos"] | None = None,
    ) -> Selected:
        """Weights for every query, each from those of the previous query.

        Args:
            previous: The weights before the first of these queries; None to start at the left.
        """
        scores = scores + self.offset
        before = scores.new_zeros(scores.shape[0], scores.shape[2])
        if previous is None:
            before[:, 0] = 1.0
        else:
            before = previous[:, 0]
        if not self.training:
            return Selected(_scan(scores.detach() >= 0, mask, before))
        scores = scores + self.noise * torch.randn_like(scores)
        return Selected(_expected(scores, mask, before))


def _expected(scores: Tensor, mask: Tensor, before: Tensor) -> Tensor:
    stop = scores.sigmoid() * mask  # a masked key is passed without a stop
    passed = functional.logsigmoid(-scores).masked_fill(~mask, 0.0)  # log(1 - p)
    passed_before = passed.cumsum(-1) - passed  # over all keys left of this one
    n_keys = scores.shape[-1]
    leftwards = torch.ones(n_keys, n_keys, dtype=torch.bool, device=scores.device).triu(1).mT
    weights = []
    for query in range(scores.shape[1]):
        c = passed_before[:, query]
        # arrive[k, j]: the probability of reaching j from k without a stop.
        steps = (c[:, None, :] - c[:, :, None]).masked_fill(leftwards, -torch.inf)
        reached = (before[:, None] @ steps.exp()).squeeze(1)  # [batch, key_pos]
        before = stop[:, query] * reached
        weights.append(before)
    return torch.stack(weights, 1)


def _scan(stops: Tensor, mask: Tensor, before: Tensor) -> Tensor:
    stops = stops & mask
    weights = []
    for query in range(stops.shape[1]):
        candidates = stops[:, query] & (before.cumsum(-1) > 0)
        first = candidates & (candidates.cumsum(-1) == 1)
        before = first.to(before.dtype)
        weights.append(before)
    return torch.stack(weights, 1)


# The selects by name, for recipes and the command line.

SelectMaker = Callable[[], Select]

_SELECTS: dict[str, SelectMaker] = {
    "gumbel": GumbelSelect,
    "hard": HardSelect,
    "mean": MeanSelect,
    "monotonic": MonotonicSelect,
    "soft": SoftSelect,
}


def register_select(name: str) -> Callable[[SelectMaker], SelectMaker]:
    """Register a select under a name; decorates its class or any function that makes one.

    >>> register_select("cold")(lambda: GumbelSelect(temperature=0.1))  # doctest: +ELLIPSIS
    <function ...>
    >>> make_select("cold").temperature
    0.1
    >>> del _SELECTS["cold"]
    """

    def add(maker: SelectMaker) -> SelectMaker:
        _SELECTS[name] = maker
        return maker

    return add


def select_names() -> tuple[str, ...]:
    """The names of all registered selects."""
    return tuple(sorted(_SELECTS))


def make_select(name: str) -> Select:
    """A new select by its name, with the settings of its paper.

    >>> make_select("soft")
    SoftSelect()
    """
    if name not in _SELECTS:
        raise UsageError(
            f"no select {name!r}: known are {', '.join(select_names())}",
            hint=suggest(name, _SELECTS) or "choose one of these",
        )
    return _SELECTS[name]()
