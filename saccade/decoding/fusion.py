"""A translator helped by a language model of the target language.

Gulcehre et al., 2015 (https://arxiv.org/abs/1503.03535). *Shallow* fusion adds the language model's
log-probabilities while decoding. *Deep* fusion gives the translator the language model's hidden
state to read; it has to be trained, with the language model held fixed.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.decoding.stepper import Started, Stepped, Stepper, first_tensor
from saccade.errors import UsageError


class ShallowFusion:
    """A stepper that scores by ``log p_translator + weight * log p_language_model``.

    Section 4.1. The sums are scores, no longer the logarithms of probabilities that sum to one, as
    in the paper. Both models must have the same vocabulary.

    Args:
        language_model: Its ``start`` takes the number of sentences.
        weight: The paper's beta, chosen on a development set.
    """

    def __init__(
        self, translator: Stepper, language_model: Stepper, *, weight: float = 0.1
    ) -> None:
        if weight < 0:
            raise UsageError(
                f"the weight of a language model must not be negative, got {weight}",
                hint="0 switches it off",
            )
        self.translator, self.language_model, self.weight = translator, language_model, weight

    def start(self, source: Any) -> Started:
        """Let the translator read the source, and the language model count its sentences."""
        translator = self.translator.start(source)
        language_model = self.language_model.start(len(first_tensor(translator.state)))
        return Started(
            (translator.memory, language_model.memory), (translator.state, language_model.state)
        )

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: Any) -> Stepped:
        """Step both and add their scores."""
        translator = self.translator.step(tokens, memory[0], state[0])
        language_model = self.language_model.step(tokens, memory[1], state[1])
        sizes = translator.log_probs.shape[1], language_model.log_probs.shape[1]
        if sizes[0] != sizes[1]:
            raise UsageError(
                f"the translator has {sizes[0]} symbols and the language model {sizes[1]}",
                hint="train the language model with the translator's target vocabulary",
            )
        return Stepped(
            log_probs=translator.log_probs + self.weight * language_model.log_probs,
            state=(translator.state, language_model.state),
            weights=translator.weights,
            stop=translator.stop,
        )


class Fused(NamedTuple):
    """What the output layer of a translator with deep fusion reads."""

    hidden: Float[Tensor, "*at d_fused"]
    gate: Float[Tensor, "*at 1"]
    """How much of the language model was let in, between 0 and 1."""


class DeepFusion(nn.Module):
    """Join a translator's hidden state with a gated one of a language model.

    Section 4.2: ``[s_TM ; g * s_LM]`` with ``g = sigmoid(v . s_LM + b)``. The paper lists the
    previous word and the context beside them; a translator adds those to ``hidden`` itself, as it
    does without fusion. No gradient goes back into the language model.

    Args:
        d_language_model: Size of the language model's state.
        gate_bias: Where b starts. The paper's -1 lets in about a quarter at first.
    """

    def __init__(self, d_language_model: int, *, gate_bias: float = -1.0) -> None:
        super().__init__()
        self.gate = nn.Linear(d_language_model, 1)
        nn.init.constant_(self.gate.bias, gate_bias)

    def forward(
        self,
        hidden: Float[Tensor, "*at d_hidden"],
        language_model: Float[Tensor, "*at d_language_model"],
    ) -> Fused:
        """Gate the language model's state and append it."""
        frozen = language_model.detach()
        gate = torch.sigmoid(self.gate(frozen))  # [*at, 1]
        return Fused(torch.cat([hidden, gate * frozen], dim=-1), gate)
