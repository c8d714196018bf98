"""What a guard is compared with: how odd a prompt is, its words, and its length."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

LEAST_OFTEN = 2  # a word that only one prompt has tells nothing of others
RIDGE = 1e-3  # of the weights, beside a mean loss: keeps them finite where the words separate


@dataclass(frozen=True)
class BagOfWords:
    """A logistic regression on which words a prompt has, in any order.

    Unlike a guard it has to be shown attacks: it is fitted on ordinary *and* injected prompts.
    """

    places: dict[str, int]
    weight: Float[Tensor, " word"]
    bias: float

    @classmethod
    def fit(cls, ordinary: Sequence[str], injected: Sequence[str]) -> BagOfWords:
        """The least logistic loss with a small ridge, found by L-BFGS."""
        texts = [*ordinary, *injected]
        often = Counter(word for text in texts for word in set(_words(text)))
        kept = sorted(word for word, n in often.items() if n >= LEAST_OFTEN)
        places = {word: place for place, word in enumerate(kept)}
        counts = _counts(places, texts)
        sign = torch.ones(len(texts), dtype=torch.double)
        sign[: len(ordinary)] = -1
        weight = torch.zeros(len(places), dtype=torch.double, requires_grad=True)
        bias = torch.zeros((), dtype=torch.double, requires_grad=True)
        optimiser = torch.optim.LBFGS(
            [weight, bias],
            max_iter=500,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-9,
            tolerance_change=1e-14,
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = softplus(-sign * (counts @ weight + bias)).mean()
            loss = loss + RIDGE * weight.square().sum()
            loss.backward()
            return loss

        with torch.enable_grad():
            optimiser.step(closure)  # pyright: ignore[reportArgumentType]
        return cls(places, weight.detach(), float(bias.detach()))

    def score(self, texts: Sequence[str]) -> Float[Tensor, " text"]:
        """The log odds that each text is injected."""
        return _counts(self.places, texts) @ self.weight + self.bias


def lengths(texts: Sequence[str]) -> Float[Tensor, " text"]:
    """How many words each text has: what must not tell injected prompts from ordinary ones.

    >>> lengths(["the cat sat", "on the mat today"]).tolist()
    [3.0, 4.0]
    """
    return torch.tensor([float(len(text.split())) for text in texts], dtype=torch.double)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+|[^\w\s]", text.lower())


def _counts(places: dict[str, int], texts: Sequence[str]) -> Float[Tensor, "text word"]:
    counts = torch.zeros(len(texts), len(places), dtype=torch.double)
    for row, text in enumerate(texts):
        for word, n in Counter(_words(text)).items():
            if word in places:
                counts[row, places[word]] = n
    # The second "the" of a text tells less than the first.
    return counts.log1p()
