"""The interface of language models, and their interpolation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.zoo.decoding.stepper import Started, Stepped


class Predicted(NamedTuple):
    """Logits after each symbol, and the final state."""

    logits: Float[Tensor, "batch pos d_vocab"]
    state: Any
    """Tensors with one row per text, to continue from."""


class LanguageModel(nn.Module, ABC):
    """Reads a batch of texts, segment by segment: ``logits, state = model(tokens, state)``.

    The chain rule makes this the probability of a text: ``p(y) = prod_t p(y_t | y_<t)``. It is a
    `Stepper` whose source is the number of texts, so it can be sampled, used in beam search, and
    fused with a translator (`saccade.zoo.decoding.ensemble.ShallowFusion`).
    """

    @abstractmethod
    def begin(self, n: int) -> Any:
        """The initial state of ``n`` texts."""

    @abstractmethod
    def forward(self, tokens: Int[Tensor, "batch pos"], state: Any = None) -> Predicted:
        """Read the next segment; without a state, from the beginning."""

    def start(self, source: int) -> Started:
        """Begin ``source`` texts."""
        return Started(None, self.begin(source))

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: Any) -> Stepped:
        """Read one symbol of each text."""
        del memory  # there is no source to remember
        predicted: Predicted = self(tokens[:, None], state)
        return Stepped(predicted.logits[:, 0].log_softmax(-1), predicted.state)


# Interpolation of two language models.


class MixedLanguageModel(LanguageModel):
    """``p = (1 - share) p_first + share p_second``.

    Linear interpolation, by which Mikolov et al., 2010 ("Recurrent neural network based language
    model", section 3 and table 1) combine a network with Kneser-Ney n-grams: the network
    generalises, the n-grams memorise phrases.

    >>> from saccade.zoo.models.ngram import NgramLanguageModel
    >>> text = torch.tensor([4, 5, 4, 5, 4, 6])
    >>> one, two = (NgramLanguageModel.count(text, order=n, d_vocab=7) for n in (1, 3))
    >>> MixedLanguageModel(one, two, share=0.25)(text[None]).logits.exp().sum(-1).round(decimals=3)
    tensor([[1., 1., 1., 1., 1., 1.]])
    """

    def __init__(self, first: LanguageModel, second: LanguageModel, *, share: float) -> None:
        super().__init__()
        if not 0 < share < 1:
            raise UsageError(
                f"expected a share between 0 and 1, got {share:g}",
                hint="with 0 or 1 one of the two models is enough",
            )
        self.first, self.second, self.share = first, second, share

    def begin(self, n: int) -> tuple[Any, Any]:
        """The states of both."""
        return self.first.begin(n), self.second.begin(n)

    def forward(
        self, tokens: Int[Tensor, "batch pos"], state: tuple[Any, Any] | None = None
    ) -> Predicted:
        """Run both; the logits are log-probabilities."""
        first, second = state or self.begin(len(tokens))
        one, other = self.first(tokens, first), self.second(tokens, second)
        mixed = torch.logaddexp(
            one.logits.log_softmax(-1) + math.log1p(-self.share),
            other.logits.log_softmax(-1) + math.log(self.share),
        )
        return Predicted(mixed, (one.state, other.state))
