"""The scores by name, for recipes and the command line."""

import difflib
from collections.abc import Callable
from typing import NamedTuple

from saccade.attention.additive import AdditiveScore
from saccade.attention.bilinear import BilinearScore
from saccade.attention.cosine import CosineScore
from saccade.attention.dot import DotScore
from saccade.attention.linear_concat import LinearConcatScore
from saccade.attention.location import LocationScore, MixedScore
from saccade.attention.scaled_dot import ScaledDotScore
from saccade.attention.score import Score
from saccade.errors import UsageError


class ScoreSizes(NamedTuple):
    """All that a score may want to know when it is made."""

    d_query: int
    d_key: int
    d_hidden: int
    """Of the network inside the score, if it has one."""
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
    """Make a score known by its name; decorates a function from sizes to a score.

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
    """The names of the scores that are known."""
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
        d_hidden: Of the network inside the score, if it has one; as large as a query unless told,
            which is what Bahdanau et al. took (appendix A.2.3, both 1000).
        max_length: The longest sequence, for scores that have a weight for each position. 128 is
            well above the 50 words to which Luong et al. cut their sentences.
    """
    if name not in _SCORES:
        near = difflib.get_close_matches(name, _SCORES, n=1)
        raise UsageError(
            f"no score {name!r}: known are {', '.join(score_names())}",
            hint=f"did you mean {near[0]!r}?" if near else "choose one of these",
        )
    sizes = ScoreSizes(
        d_query=d_query,
        d_key=d_key,
        d_hidden=d_query if d_hidden is None else d_hidden,
        max_length=max_length,
    )
    return _SCORES[name](sizes)
