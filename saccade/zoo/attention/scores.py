"""Score functions, one class per formula, and their names for recipes and the command line."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import sqrt
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError, suggest
from saccade.zoo.fast.forms import is_fast
from saccade.zoo.fast.soft_attention import additive_scores

# The interface: one number for each pair of query and key.


class Score(nn.Module, ABC):
    """``score(query, keys) -> scores``, in two parts, because keys serve many queries.

    A decoder uses the same keys at every step: `project` computes once per sentence what depends on
    keys alone, ``forward`` computes the rest at each step. To add a score, subclass, write
    ``forward`` (and `project`, if keys are transformed), and register it with
    `saccade.zoo.attention.scores.register_score`.
    """

    looks_back: ClassVar[bool] = False
    """True: ``forward`` has a third argument, the weights of the previous step."""

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos d_projected"]:
        """What ``forward`` needs of the keys; here the keys themselves."""
        return keys

    @abstractmethod
    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        projected: Float[Tensor, "batch key_pos d_projected"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query, before any mask."""


def check_same_size(score: str, *, d_query: int, d_key: int) -> None:
    """Refuse sizes that differ, for scores that need queries and keys of one size."""
    if d_query != d_key:
        raise UsageError(
            f"the {score} score needs queries and keys of one size, "
            f"got d_query={d_query} and d_key={d_key}",
            hint="use the bilinear or the additive score, or project one of the two",
        )


# The dot product as a score.


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


# The dot product, scaled so that its variance does not grow with the key size.


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


# A dot product through a learnt matrix.


class BilinearScore(Score):
    """Compare query and key through a matrix: ``score(q, k) = q . W k``.

    Luong et al., 2015 (https://arxiv.org/abs/1508.04025), equation 8, "general". Unlike a decoder
    that multiplies W with the query at each step, we multiply it with the keys, once per sentence:
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


# A small network as a score.


class AdditiveScore(Score):
    """Score each key against each query with a network of one hidden layer.

    Bahdanau et al., 2015 (https://arxiv.org/abs/1409.0473), appendix A.1.2:
    ``score(q, k) = v . tanh(W q + U k)``. No biases, as in the paper's equation. Unlike the paper
    we can score all queries at once.

    >>> score = AdditiveScore(d_query=3, d_key=5, d_hidden=7)
    >>> score(torch.randn(2, 1, 3), score.project(torch.randn(2, 11, 5))).shape
    torch.Size([2, 1, 11])
    """

    def __init__(self, *, d_query: int, d_key: int, d_hidden: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(d_query, d_hidden, bias=False)
        self.key_proj = nn.Linear(d_key, d_hidden, bias=False)
        self.score_proj = nn.Linear(d_hidden, 1, bias=False)

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos d_hidden"]:
        """``U k`` of every key."""
        return self.key_proj(keys)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        projected: Float[Tensor, "batch key_pos d_hidden"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query."""
        query = self.query_proj(query)
        if is_fast():
            return additive_scores(query, projected, self.score_proj.weight)
        sums = query[:, :, None] + projected[:, None]  # [batch, query_pos, key_pos, d_hidden]
        return self.score_proj(torch.tanh(sums))[..., 0]


# The cosine of the angle between query and key, times a learnt strength.

# Smallest norm to divide by: at zero the derivative of x/|x| is infinite, and with torch's default
# of 1e-12 one zero key is enough for an exploding gradient.
SHORTEST = 1e-6


class CosineScore(Score):
    """Score a key by its direction alone: ``score(q, k) = strength * q . k / (|q| |k|)``.

    Graves et al., 2014, Neural Turing Machines (https://arxiv.org/abs/1410.5401), equations 5 and
    6. There a controller emits a strength for each query; here one is learnt, initialised to 1,
    because this score has no controller. Without it no weight could be more than e^2 times another.
    """

    def __init__(self, *, d_query: int, d_key: int) -> None:
        super().__init__()
        check_same_size("cosine", d_query=d_query, d_key=d_key)
        self.log_strength = nn.Parameter(torch.zeros(()))

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos d_key"]:
        """The keys normalised to length 1."""
        return functional.normalize(keys, dim=-1, eps=SHORTEST)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_key"],
        projected: Float[Tensor, "batch key_pos d_key"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query."""
        unit = functional.normalize(query, dim=-1, eps=SHORTEST)
        return (unit * self.log_strength.exp()) @ projected.mT


# A linear function of the concatenated query and key: the simplest score.


class LinearConcatScore(Score):
    """A weighted sum of the entries of query and key: ``score(q, k) = w . [q; k]``.

    The worked example by which attention is often taught, with w = (-1, ..., -1, 2, ..., 2). The
    sum splits into ``w_q . q + w_k . k``, and a softmax over keys is invariant to a term that all
    keys share: **the weights do not depend on the query**. `AdditiveScore` adds a tanh, which makes
    query and key interact.
    """

    def __init__(self, *, d_query: int, d_key: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(d_query, 1, bias=False)
        self.key_proj = nn.Linear(d_key, 1, bias=False)

    def project(
        self, keys: Float[Tensor, "batch key_pos d_key"]
    ) -> Float[Tensor, "batch key_pos 1"]:
        """The key's part of the score."""
        return self.key_proj(keys)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_query"],
        projected: Float[Tensor, "batch key_pos 1"],
    ) -> Float[Tensor, "batch query_pos key_pos"]:
        """Scores of every key for every query."""
        return self.query_proj(query) + projected.mT


# Scores that use the position of a key, alone or with its content.


class LocationScore(Score):
    """Score positions from the query alone, regardless of content: ``scores(q) = W q``.

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
                f"the location score has {max_length} positions, got {n} keys",
                hint=f"set max_length={n} or more, or drop longer sequences",
            )
        return nn.functional.linear(query, self.position_proj.weight[:n])


class MixedScore(Score):
    """Score content and the weights of the previous step: ``v . tanh(W q + U k + V f + b)``.

    Chorowski et al., 2015 (https://arxiv.org/abs/1506.07503), equations 8 and 9: the features ``f =
    F * previous`` are the weights of the previous step, convolved with learnt filters, so that the
    score can move attention forward. One query at a time, since each needs the weights of the
    previous one; at the first step f is zero.
    """

    looks_back: ClassVar[bool] = True

    def __init__(
        self, *, d_query: int, d_key: int, d_hidden: int, n_filters: int = 10, reach: int = 12
    ) -> None:
        """Set up.

        Args:
            n_filters: 10 in the paper's section 4.
            reach: Positions that a filter covers on each side. The paper's 100 spans about a
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
            previous: The weights of the previous step; None at the first step.
        """
        if query.shape[1] != 1:
            raise UsageError(
                f"the mixed score takes one query at a time, got {query.shape[1]}",
                hint="call it step by step, each time with the weights of the previous step",
            )
        hidden = self.query_proj(query) + projected
        if previous is not None:
            features = self.filters(previous).mT  # [batch, key_pos, n_filters]
            hidden = hidden + self.feature_proj(features)
        return self.score_proj(torch.tanh(hidden)).mT


class ScoreSizes(NamedTuple):
    """All sizes that a score may need."""

    d_query: int
    d_key: int
    d_hidden: int
    """Hidden size of the network inside the score, if it has one."""
    max_length: int
    """The longest sequence, for scores that have a weight for each position."""


ScoreMaker = Callable[[ScoreSizes], Score]

_SCORES: dict[str, ScoreMaker] = {
    "additive": lambda s: AdditiveScore(d_query=s.d_query, d_key=s.d_key, d_hidden=s.d_hidden),
    "bilinear": lambda s: BilinearScore(d_query=s.d_query, d_key=s.d_key),
    "cosine": lambda s: CosineScore(d_query=s.d_query, d_key=s.d_key),
    "dot": lambda s: DotScore(d_query=s.d_query, d_key=s.d_key),
    "linear-concat": lambda s: LinearConcatScore(d_query=s.d_query, d_key=s.d_key),
    "location": lambda s: LocationScore(d_query=s.d_query, max_length=s.max_length),
    "mixed": lambda s: MixedScore(d_query=s.d_query, d_key=s.d_key, d_hidden=s.d_hidden),
    "scaled-dot": lambda s: ScaledDotScore(d_query=s.d_query, d_key=s.d_key),
}


def register_score(name: str) -> Callable[[ScoreMaker], ScoreMaker]:
    """Register a score under a name; decorates a function from sizes to a score.

    >>> @register_score("double-dot")
    ... def double_dot(sizes):
    ...     return DotScore(d_query=sizes.d_query, d_key=sizes.d_key)
    >>> make_score("double-dot", d_query=3, d_key=3)
    DotScore()
    >>> del _SCORES["double-dot"]
    """

    def add(maker: ScoreMaker) -> ScoreMaker:
        _SCORES[name] = maker
        return maker

    return add


def score_names() -> tuple[str, ...]:
    """The names of all registered scores."""
    return tuple(sorted(_SCORES))


def make_score(
    name: str, *, d_query: int, d_key: int, d_hidden: int | None = None, max_length: int = 128
) -> Score:
    """A new score by its name.

    >>> make_score("bilinear", d_query=3, d_key=5)
    BilinearScore(
      (key_proj): Linear(in_features=5, out_features=3, bias=False)
    )

    Args:
        d_hidden: Hidden size of the network inside the score, if it has one. Default: the query
        size, as in Bahdanau et al. (appendix A.2.3, both 1000).
        max_length: The longest sequence, for scores that have a weight for each position. 128 is
            well above the 50 words to which Luong et al. cut their sentences.
    """
    if name not in _SCORES:
        raise UsageError(
            f"no score {name!r}: known are {', '.join(score_names())}",
            hint=suggest(name, _SCORES) or "choose one of these",
        )
    sizes = ScoreSizes(
        d_query=d_query,
        d_key=d_key,
        d_hidden=d_query if d_hidden is None else d_hidden,
        max_length=max_length,
    )
    return _SCORES[name](sizes)
