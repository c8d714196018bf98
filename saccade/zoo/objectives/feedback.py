"""Scheduled feeding: from the true symbols to the network's own, little by little.

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

# Professor forcing: a network should behave alike when it is led and when it runs free.
#
# Lamb et al., 2016 (https://arxiv.org/abs/1610.09038). A discriminator reads a network's behaviour
# (its hidden states, and what it predicts) over a whole sequence and tells whether the true symbols
# were fed to it (teacher forcing) or its own (free running). The network is trained to be taken for
# led.

# The paper's bounds on the discriminator's accuracy: below the first it has nothing to teach the
# network, above the second it has learnt enough.
TEACHES_FROM = 0.75
LEARNS_UNTIL = 0.99


class Behaviour(NamedTuple):
    """What a network did over a batch of sequences."""

    values: Float[Tensor, "batch pos d_behaviour"]
    """Its hidden states, or these with its predictions beside them."""
    mask: Bool[Tensor, "batch pos"]
    """True where the sequence has a symbol: at least one, and padding only at the end."""


class Discriminator(nn.Module):
    """Tell from its behaviour whether a network was led: the log-odds for each sequence.

    A bidirectional recurrent network, as in the paper, and a small network on its two last states.
    """

    def __init__(self, d_behaviour: int, *, d_hidden: int) -> None:
        super().__init__()
        self.read = nn.GRU(d_behaviour, d_hidden, batch_first=True, bidirectional=True)
        self.judge = nn.Sequential(
            nn.Linear(2 * d_hidden, d_hidden), nn.ReLU(), nn.Linear(d_hidden, 1)
        )

    def forward(self, behaviour: Behaviour) -> Float[Tensor, " batch"]:
        """Positive for a sequence that looks led."""
        lengths = behaviour.mask.sum(1).cpu()
        packed = pack_padded_sequence(
            behaviour.values, lengths, batch_first=True, enforce_sorted=False
        )
        _, last = self.read(packed)  # [direction, batch, d_hidden]
        return self.judge(torch.cat([last[0], last[1]], dim=-1))[:, 0]


class ProfessorForcing(NamedTuple):
    """The losses of the discriminator and of the network that it watches."""

    loss: Float[Tensor, ""]
    """To minimise, beside the network's likelihood: those of the following that are due."""
    discriminator: Float[Tensor, ""]
    """Of the discriminator (eq. 1); its gradient does not reach the network."""
    free: Float[Tensor, ""]
    """Of the network, when free, to look led (eq. 3); it does not reach the discriminator."""
    led: Float[Tensor, ""]
    """Of the network, when led, to look free (eq. 4); it does not reach the discriminator."""
    accuracy: float
    """The share of sequences that the discriminator tells right."""


def professor_forcing(
    discriminator: nn.Module, led: Behaviour, free: Behaviour, *, is_mutual: bool = False
) -> ProfessorForcing:
    """Both sides' losses for one batch run twice: led by the truth, and free.

    Section 2.2, eqs. 1 to 4. The paper updates the two sides with an optimiser each; here each
    loss has its gradient cut where it does not belong, so that the sum can be minimised by one.

    Args:
        discriminator: From a `Behaviour` to log-odds of having been led.
        is_mutual: Also train the led network to look free, the paper's option.
    """
    for_led = discriminator(_detached(led))
    for_free = discriminator(_detached(free))
    with _held_fixed(discriminator):
        free_loss = functional.softplus(-discriminator(free)).mean()
        led_loss = functional.softplus(discriminator(led)).mean()
    judged = functional.softplus(-for_led).mean() + functional.softplus(for_free).mean()
    right = torch.cat([for_led > 0, for_free <= 0])
    accuracy = right.float().mean().item()
    network = free_loss + led_loss if is_mutual else free_loss
    loss = judged * (accuracy < LEARNS_UNTIL) + network * (accuracy > TEACHES_FROM)
    return ProfessorForcing(loss, judged, free_loss, led_loss, accuracy)


def _detached(behaviour: Behaviour) -> Behaviour:
    return behaviour._replace(values=behaviour.values.detach())


@contextmanager
def _held_fixed(module: nn.Module) -> Iterator[None]:
    """Gradients pass through a module inside this block, and do not stay in it."""
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
    """What a decoder is fed next: the true symbol with the given probability, else its own.

    A coin is tossed for each symbol, as in the paper, which found one coin a sentence much worse.

    Args:
        predicted: Drawn from the decoder's prediction, or the likeliest; the paper draws.
    """
    toss = torch.rand(truth.shape, generator=generator, device=truth.device)
    return torch.where(toss < probability, truth, predicted)
