"""When a sequence ends: three ways, each with what it needs in training and in decoding.

- *End symbol*: the targets end in EOS, and a sequence ends where the model says it. Only for models
  that produce symbols.
- *Coin*: the model has one more output, the log-odds that this step is the last. `coin_loss` trains
  it; a stepper returns it as ``stop``.
- *Predicted length*: the model predicts at the start how many steps there will be
  (`LengthPredictor`) and is fed how many are left. A stepper returns ``stop_when_none_left`` as
  ``stop``: a coin without chance.

Goodfellow, Bengio and Courville, 2016 (https://www.deeplearningbook.org), section 10.2.3.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.tasks.symbols import EOS


class Ending(NamedTuple):
    """Which sequences end with the symbol just chosen."""

    is_last: Bool[Tensor, " row"]
    log_prob: Float[Tensor, " row"]
    """Of the coin's fall; zero for an end symbol, whose probability counts as a symbol's."""


def ending(
    tokens: Int[Tensor, " row"],
    stop: Float[Tensor, " row"] | None,
    *,
    is_sampled: bool = False,
    generator: torch.Generator | None = None,
) -> Ending:
    """Whether each sequence ends: by its coin if it has one, else by the end symbol.

    Args:
        stop: Log-odds of the coin, as a stepper returns it.
        is_sampled: The coin is tossed; otherwise the likelier side counts.
    """
    if stop is None:
        return Ending(tokens == EOS, torch.zeros(len(tokens), device=tokens.device))
    if is_sampled:
        toss = torch.rand(stop.shape, generator=generator, device=stop.device)
        is_last = toss < stop.sigmoid()
    else:
        is_last = stop > 0
    return Ending(is_last, functional.logsigmoid(torch.where(is_last, stop, -stop)))


def coin_loss(
    stop: Float[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the coin: it must fall at the last real position and not before."""
    later = functional.pad(mask[:, 1:], (0, 1))
    is_last = mask & ~later
    loss = functional.binary_cross_entropy_with_logits(stop, is_last.to(stop), reduction="none")
    return torch.where(mask, loss, 0.0).sum() / mask.sum().clamp_min(1)


def stop_when_none_left(remaining: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
    """Log-odds of stopping for a model that counts down: certain once nothing is left.

    Args:
        remaining: Steps left after the one whose symbol is chosen now.

    >>> stop_when_none_left(torch.tensor([2, 1, 0]))
    tensor([-inf, -inf, inf])
    """
    certain = torch.full(remaining.shape, torch.inf, device=remaining.device)
    return torch.where(remaining <= 0, certain, -certain)


class LengthPredictor(nn.Module):
    """Predict how long the output will be from a summary of the input.

    A softmax over the lengths 1 to ``max_length``: unlike a regression it cannot predict a length
    that is none, and it can be unsure between a short and a long one.
    """

    def __init__(self, d_input: int, *, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.logits = nn.Linear(d_input, max_length)

    def forward(self, summary: Float[Tensor, "batch d_input"]) -> Int[Tensor, " batch"]:
        """The likeliest length of each."""
        return self.logits(summary).argmax(-1) + 1

    def loss(
        self, summary: Float[Tensor, "batch d_input"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of the true lengths; longer ones count as the longest."""
        return functional.cross_entropy(self.logits(summary), lengths.clamp(1, self.max_length) - 1)
