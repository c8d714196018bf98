"""Scheduled sampling and professor forcing: training a decoder on its own outputs.

Bengio et al., 2015 (https://arxiv.org/abs/1506.03099), "scheduled sampling". At training step i
each symbol fed to a decoder is the true one with probability epsilon(i), else the one the decoder
has just predicted. Epsilon falls from 1, teacher forcing, by one of the schedules of section 2.4.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

# Professor forcing: a network should behave the same under teacher forcing and free running.
#
# Lamb et al., 2016 (https://arxiv.org/abs/1610.09038). A discriminator reads a network's behaviour
# (its hidden states and predictions) over a whole sequence and classifies whether the true symbols
# were fed to it (teacher forcing) or its own (free running). The network is trained so that free
# running is classified as teacher forcing.

# The paper's bounds on the discriminator's accuracy: below the first the network is not trained
# against it, above the second it is not trained itself.
TEACHES_FROM = 0.75
LEARNS_UNTIL = 0.99


class Behaviour(NamedTuple):
    """The behaviour of a network over a batch of sequences."""

    values: Float[Tensor, "batch pos d_behaviour"]
    """Its hidden states, or hidden states and predictions concatenated."""
    mask: Bool[Tensor, "batch pos"]
    """True where the sequence has a symbol: at least one, with padding only at the end."""


class Discriminator(nn.Module):
    """Log-odds for each sequence that its behaviour comes from teacher forcing.

    A bidirectional recurrent network, as in the paper, and a small network on its two final states.
    """

    def __init__(self, d_behaviour: int, *, d_hidden: int) -> None:
        super().__init__()
        self.read = nn.GRU(d_behaviour, d_hidden, batch_first=True, bidirectional=True)
        self.classify = nn.Sequential(
            nn.Linear(2 * d_hidden, d_hidden), nn.ReLU(), nn.Linear(d_hidden, 1)
        )

    def forward(self, behaviour: Behaviour) -> Float[Tensor, " batch"]:
        """Positive for a sequence classified as teacher forcing."""
        lengths = behaviour.mask.sum(1).cpu()
        packed = pack_padded_sequence(
            behaviour.values, lengths, batch_first=True, enforce_sorted=False
        )
        _, last = self.read(packed)  # [direction, batch, d_hidden]
        return self.classify(torch.cat([last[0], last[1]], dim=-1))[:, 0]


class ProfessorForcing(NamedTuple):
    """The losses of the discriminator and of the network."""

    loss: Float[Tensor, ""]
    """To minimise together with the network's likelihood: the sum of those that apply."""
    discriminator: Float[Tensor, ""]
    """Of the discriminator (eq. 1); its gradient does not reach the network."""
    free: Float[Tensor, ""]
    """Of the network in free running (eq. 3); no gradient for the discriminator."""
    led: Float[Tensor, ""]
    """Of the network under teacher forcing (eq. 4); no gradient for the discriminator."""
    accuracy: float
    """The accuracy of the discriminator."""


def professor_forcing(
    discriminator: nn.Module, led: Behaviour, free: Behaviour, *, is_mutual: bool = False
) -> ProfessorForcing:
    """The losses for one batch run twice: with teacher forcing, and free.

    Section 2.2, eqs. 1 to 4. The paper updates the two sides with an optimiser each; here each loss
    is detached from the other side's weights, so that one optimiser can minimise the sum.

    Args:
        discriminator: From a `Behaviour` to log-odds of teacher forcing.
        is_mutual: Also train teacher forcing to look like free running, the paper's option.
    """
    for_led = discriminator(_detached(led))
    for_free = discriminator(_detached(free))
    with _held_fixed(discriminator):
        free_loss = functional.softplus(-discriminator(free)).mean()
        led_loss = functional.softplus(discriminator(led)).mean()
    of_discriminator = functional.softplus(-for_led).mean() + functional.softplus(for_free).mean()
    right = torch.cat([for_led > 0, for_free <= 0])
    accuracy = right.float().mean().item()
    network = free_loss + led_loss if is_mutual else free_loss
    loss = of_discriminator * (accuracy < LEARNS_UNTIL) + network * (accuracy > TEACHES_FROM)
    return ProfessorForcing(loss, of_discriminator, free_loss, led_loss, accuracy)


def _detached(behaviour: Behaviour) -> Behaviour:
    return behaviour._replace(values=behaviour.values.detach())


@contextmanager
def _held_fixed(module: nn.Module) -> Iterator[None]:
    """Inside this block gradients pass through a module but do not reach its weights."""
    learning = [weight for weight in module.parameters() if weight.requires_grad]
    for weight in learning:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in learning:
            weight.requires_grad_(True)


def linear_feeding(step: int, *, slope: float, start: float = 1.0, least: float = 0.0) -> float:
    """``max(least, start - slope * step)``.

    >>> linear_feeding(3, slope=0.25), linear_feeding(30, slope=0.25, least=0.1)
    (0.25, 0.1)
    """
    return max(least, start - slope * step)


def exponential_feeding(step: int, *, base: float) -> float:
    """``base ** step`` with a base below 1.

    >>> exponential_feeding(2, base=0.5)
    0.25
    """
    return base**step


def inverse_sigmoid_feeding(step: int, *, speed: float) -> float:
    """``speed / (speed + exp(step / speed))``: stays near 1, then falls around speed log speed.

    >>> round(inverse_sigmoid_feeding(0, speed=99.0), 2)
    0.99
    """
    # The same with the exponential in the divisor: it cannot overflow.
    falling = math.exp(-step / speed)
    return speed * falling / (speed * falling + 1)


def choose_fed(
    truth: Int[Tensor, " batch"],
    predicted: Int[Tensor, " batch"],
    *,
    probability: float,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " batch"]:
    """The next input of a decoder: the true symbol with the given probability, else its own.

    The choice is made for each symbol, as in the paper, which found one choice per sentence much
    worse.

    Args:
        predicted: Sampled from the decoder's prediction, or its argmax; the paper samples.
    """
    toss = torch.rand(truth.shape, generator=generator, device=truth.device)
    return torch.where(toss < probability, truth, predicted)
