"""Facts about contexts: what a head promotes or suppresses at a position, and where it looks.

A context is a head at a sampled position. `FEATURES` are true or false of each; `OWN` are tokens of
a context that may be on a list that each head has of its own. Labels are made of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas

LOOKS = 0.2  # a head looks at a position that has this share of its attention
FAR, NEAR = 32, 4  # tokens

FUNCTION_WORDS = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "been", "but", "by", "can", "could", "did"),
        *("do", "for", "from", "had", "has", "have", "he", "her", "him", "his", "i", "if", "in"),
        *("into", "is", "it", "its", "me", "my", "no", "not", "of", "on", "one", "or", "our"),
        *("she", "so", "than", "that", "the", "their", "them", "then", "there", "they", "this"),
        *("to", "up", "was", "we", "were", "what", "when", "which", "who", "will", "with", "would"),
        *("you", "your"),
    )
)


def token_class(text: str) -> str:
    r"""The kind of a token by its spelling.

    >>> [token_class(each) for each in (" the", " Paris", "ing", " 12")]
    ['function word', 'capitalised word', 'word piece', 'number']
    >>> [token_class(each) for each in (".", "\n", " house")]
    ['punctuation', 'line break', 'word']
    """
    bare = text.strip()
    if not bare:
        return "line break" if "\n" in text else "space"
    if any(each.isdigit() for each in bare):
        return "number"
    if not any(each.isalpha() for each in bare):
        return "punctuation"
    if bare.lower() in FUNCTION_WORDS:
        return "function word"
    if bare[0].isupper():
        return "capitalised word"
    return "word" if text[0].isspace() else "word piece"


CLASSES = (
    *("function word", "capitalised word", "word", "word piece", "number", "punctuation"),
    *("line break", "space"),
)
_PLURALS = {each: f"{each}s" for each in CLASSES} | {"punctuation": "punctuation"}


class Contexts:
    """Some rows of an atlas's records, with what features need, for all heads at once."""

    def __init__(self, atlas: Atlas, rows: Int[Tensor, " n"]) -> None:
        records = atlas.records
        self.kl = records.kl[rows]
        self.window, self.position = records.window[rows].long(), records.position[rows].long()
        self.ids = atlas.windows[self.window]  # [n, pos]
        self.promoted = records.promoted[rows].long()
        self.suppressed = records.suppressed[rows].long()
        self.looked = records.looked[rows].long()
        self.looked_by = records.looked_by[rows].float()
        is_shown = torch.arange(self.ids.shape[1]) <= self.position[:, None]
        self.before = self.ids.masked_fill(~is_shown, -1)  # [n, pos]: -1 beyond the position
        numbers = torch.zeros(max(atlas.tokens) + 1, dtype=torch.long)
        for token, text in atlas.tokens.items():
            numbers[token] = CLASSES.index(token_class(text))
        self.class_of = numbers

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and heads."""
        return self.kl.shape[0], self.kl.shape[1]

    @cached_property
    def current(self) -> Int[Tensor, "n 1"]:
        """The token at the position."""
        return self.ids.gather(1, self.position[:, None])

    @cached_property
    def previous(self) -> Int[Tensor, "n 1"]:
        """The token before it."""
        return self.ids.gather(1, (self.position[:, None] - 1).clamp_min(0))

    @cached_property
    def main(self) -> Int[Tensor, "n head"]:
        """The position, not the first, that the head looks at most."""
        weight = self.looked_by.masked_fill(self.looked == 0, -1)
        return self.looked.gather(2, weight.argmax(2, keepdim=True))[..., 0]

    @cached_property
    def main_weight(self) -> Float[Tensor, "n head"]:
        """Its weight; 0 if the head looks at the first position alone."""
        return self.looked_by.masked_fill(self.looked == 0, 0).amax(2)

    @cached_property
    def main_token(self) -> Int[Tensor, "n head"]:
        """The token there."""
        return self.ids.gather(1, self.main)

    @cached_property
    def is_after_same(self) -> Bool[Tensor, "n pos"]:
        """Whether the position comes just after an earlier occurrence of the current token."""
        same = self.before == self.current
        same = same.scatter(1, self.position[:, None], value=False)
        return torch.cat([torch.zeros_like(same[:, :1]), same[:, :-1]], 1)

    def weight_at(self, wanted: Bool[Tensor, "n pos"]) -> Float[Tensor, "n head"]:
        """How much of its attention a head gives to some positions, of those it looks at most."""
        n, n_heads = self.shape
        on = wanted.gather(1, self.looked.flatten(1)).view(n, n_heads, -1)
        return (self.looked_by * on).sum(2)

    def seen(self, token: Int[Tensor, "n head"]) -> Bool[Tensor, "n head"]:
        """Whether a token is at one of the positions that the head looks at."""
        n, n_heads = self.shape
        there = self.ids.gather(1, self.looked.flatten(1)).view(n, n_heads, -1)
        return ((there == token[..., None]) & (self.looked_by >= LOOKS / 2)).any(2)


@dataclass(frozen=True)
class Feature:
    """A fact about contexts that is true or false."""

    phrase: str
    holds: Callable[[Contexts], Bool[Tensor, "n head"]]


def _in_text(contexts: Contexts, token: Tensor) -> Tensor:
    """Whether a token occurs in the text before."""
    n, n_heads = contexts.shape
    found = torch.empty(n, n_heads, dtype=torch.bool)
    for at in range(n_heads):
        found[:, at] = (contexts.before == token[:, at, None]).any(1)
    return found


def _continues(contexts: Contexts) -> Tensor:
    """Whether the first promoted token once came after an earlier occurrence of the current one."""
    n, n_heads = contexts.shape
    followers = contexts.before.masked_fill(~contexts.is_after_same, -2)
    found = torch.empty(n, n_heads, dtype=torch.bool)
    for at in range(n_heads):
        found[:, at] = (followers == contexts.promoted[:, at, :1]).any(1)
    return found


def _class_features() -> Iterator[Feature]:
    for number, name in enumerate(CLASSES):
        many = _PLURALS[name]
        yield Feature(f"promotes {many}", lambda c, k=number: c.class_of[c.promoted[..., 0]] == k)
        yield Feature(
            f"looks at {many}",
            lambda c, k=number: (c.class_of[c.main_token] == k) & (c.main_weight >= LOOKS),
        )
        yield Feature(
            f"matters after {many}",
            lambda c, k=number: (c.class_of[c.current] == k).expand(c.shape),
        )


def _distance(contexts: Contexts) -> Tensor:
    return contexts.position[:, None] - contexts.main


FEATURES: tuple[Feature, ...] = (
    Feature("promotes a token it looks at", lambda c: c.seen(c.promoted[..., 0])),
    Feature("suppresses a token it looks at", lambda c: c.seen(c.suppressed[..., 0])),
    Feature("promotes a token of the text before", lambda c: _in_text(c, c.promoted[..., 0])),
    Feature("suppresses a token of the text before", lambda c: _in_text(c, c.suppressed[..., 0])),
    Feature("continues an earlier occurrence of the current token", _continues),
    Feature("suppresses the current token", lambda c: c.suppressed[..., 0] == c.current),
    Feature(
        "looks at the first position",
        lambda c: (c.looked_by * (c.looked == 0)).sum(2) >= 0.5,
    ),
    Feature(
        "looks at the token before",
        lambda c: (_distance(c) == 1) & (c.main_weight >= LOOKS),
    ),
    Feature(
        "looks at the current token",
        lambda c: (_distance(c) == 0) & (c.main_weight >= LOOKS),
    ),
    Feature(
        f"looks 2 to {NEAR} tokens back",
        lambda c: (_distance(c) >= 2) & (_distance(c) <= NEAR) & (c.main_weight >= LOOKS),
    ),
    Feature(
        f"looks more than {FAR} tokens back",
        lambda c: (_distance(c) > FAR) & (c.main_weight >= LOOKS),
    ),
    Feature(
        "looks at earlier occurrences of the current token",
        lambda c: (c.main_token == c.current) & (_distance(c) > 0) & (c.main_weight >= LOOKS),
    ),
    Feature(
        "looks at what came after earlier occurrences of the current token",
        lambda c: c.weight_at(c.is_after_same) >= LOOKS,
    ),
    *_class_features(),
)


class Own(NamedTuple):
    """A fact about a head's own list of tokens."""

    phrase: str
    """With the tokens in place of {}."""
    tokens: Callable[[Contexts], Int[Tensor, "n head"]]


# Each is a list for each head, and the fact that a context's token is on it.
OWN: tuple[Own, ...] = (
    Own("promotes {}", lambda c: c.promoted[..., 0]),
    Own("suppresses {}", lambda c: c.suppressed[..., 0]),
    Own("looks at {}", lambda c: c.main_token),
    Own("matters after {}", lambda c: c.current.expand(c.shape)),
)
