"""What every language model is: it reads symbols and says what comes next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.decoding.stepper import Started, Stepped


class Predicted(NamedTuple):
    """What follows each symbol, and where reading stopped."""

    logits: Float[Tensor, "batch pos d_vocab"]
    state: Any
    """Tensors with one row a text: to go on from."""


class LanguageModel(nn.Module, ABC):
    """Reads texts side by side, piece after piece: ``logits, state = model(tokens, state)``.

    The chain rule makes this the probability of a text: ``p(y) = prod_t p(y_t | y_<t)``. It is a
    `Stepper` whose source is the number of texts, so it can be sampled from, searched in, and put
    beside a translator (`saccade.decoding.ShallowFusion`).
    """

    @abstractmethod
    def begin(self, n: int) -> Any:
        """The state of ``n`` texts of which nothing has been read."""

    @abstractmethod
    def forward(self, tokens: Int[Tensor, "batch pos"], state: Any = None) -> Predicted:
        """Read on; without a state, from the beginning."""

    def start(self, source: int) -> Started:
        """Begin ``source`` texts."""
        return Started(None, self.begin(source))

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: Any) -> Stepped:
        """Read one symbol of each text."""
        del memory  # there is no source to remember
        predicted: Predicted = self(tokens[:, None], state)
        return Stepped(predicted.logits[:, 0].log_softmax(-1), predicted.state)
