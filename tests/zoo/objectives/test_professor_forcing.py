"""Professor forcing: who learns from which loss, and that it works."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from saccade.zoo.objectives.feedback import Behaviour, Discriminator, professor_forcing

BATCH, POSITIONS, D_BEHAVIOUR, D_HIDDEN = 5, 7, 3, 11


def behaviour(shift=0.0, seed=0, n=BATCH):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(n, POSITIONS, D_BEHAVIOUR, generator=generator) + shift
    lengths = 1 + torch.arange(n) % POSITIONS
    return Behaviour(values.requires_grad_(), torch.arange(POSITIONS) < lengths[:, None])


@pytest.fixture
def discriminator():
    torch.manual_seed(0)
    return Discriminator(D_BEHAVIOUR, d_hidden=D_HIDDEN)


class Judge(nn.Module):
    """Says what it was told, whatever it sees."""

    def __init__(self, odds):
        super().__init__()
        self.odds = nn.Parameter(torch.tensor(odds))

    def forward(self, behaviour):
        # The values enter with weight zero, so that the gradient has a way.
        return self.odds + 0 * behaviour.values.sum((1, 2)) + behaviour.values[:, 0, 0]


def test_padding_does_not_change_the_verdict(discriminator):
    short = behaviour()
    values = torch.where(short.mask[:, :, None], short.values, 99.0)
    longer = Behaviour(
        functional.pad(values, (0, 0, 0, 2), value=-77.0), functional.pad(short.mask, (0, 2))
    )
    torch.testing.assert_close(discriminator(longer), discriminator(short))


def test_it_reads_in_both_directions(discriminator):
    one = behaviour(n=2)
    whole = one._replace(mask=torch.ones_like(one.mask))
    (gradient,) = torch.autograd.grad(discriminator(whole).sum(), one.values)
    assert (gradient.abs().sum(-1) > 1e-6).all()


def test_the_losses_are_the_papers(discriminator):
    led, free = behaviour(seed=1), behaviour(seed=2)
    found = professor_forcing(discriminator, led, free)
    d_led, d_free = discriminator(led).sigmoid(), discriminator(free).sigmoid()
    torch.testing.assert_close(found.discriminator, -d_led.log().mean() - (1 - d_free).log().mean())
    torch.testing.assert_close(found.free, -d_free.log().mean())
    torch.testing.assert_close(found.led, -(1 - d_led).log().mean())
    right = (d_led > 0.5).sum() + (d_free <= 0.5).sum()
    assert found.accuracy == pytest.approx(right.item() / (2 * BATCH))


def test_each_loss_reaches_its_own_side_only(discriminator):
    led, free = behaviour(seed=1), behaviour(seed=2)
    found = professor_forcing(discriminator, led, free)
    weights = list(discriminator.parameters())

    def reached(loss):
        sides = torch.autograd.grad(
            loss, [led.values, free.values, weights[0]], allow_unused=True, retain_graph=True
        )
        return [side is not None and bool((side != 0).any()) for side in sides]

    assert reached(found.discriminator) == [False, False, True]
    assert reached(found.free) == [False, True, False]
    assert reached(found.led) == [True, False, False]
    assert all(weight.requires_grad for weight in weights)


@pytest.mark.parametrize(
    ("shift", "learns", "teaches"),
    [(5.0, False, True), (0.0, True, False)],
    ids=["all right", "half right"],
)
def test_the_better_the_discriminator_the_more_it_teaches(shift, learns, teaches):
    led, free = behaviour(), behaviour()
    with torch.no_grad():
        led.values[:, 0, 0] = shift
        free.values[:, 0, 0] = -shift
    judge = Judge(0.1 if shift == 0 else 0.0)
    found = professor_forcing(judge, led, free)
    assert found.accuracy == (0.5 if shift == 0 else 1.0)
    expected = found.discriminator * learns + found.free * teaches
    torch.testing.assert_close(found.loss, expected)


def test_the_led_network_may_be_asked_to_look_free_too():
    led, free = behaviour(3.0, seed=1), behaviour(-3.0, seed=2)
    plain = professor_forcing(Judge(0.0), led, free)
    mutual = professor_forcing(Judge(0.0), led, free, is_mutual=True)
    assert plain.accuracy > 0.75
    torch.testing.assert_close(mutual.loss, plain.loss + plain.led)


def test_a_discriminator_learns_to_tell_and_a_network_to_look_led(discriminator):
    """One optimiser for both sides: the free behaviour is shifted, and moves back."""
    shift = nn.Parameter(torch.tensor(1.5))
    optimiser = torch.optim.Adam(
        [{"params": discriminator.parameters()}, {"params": [shift], "lr": 0.06}], lr=0.02
    )
    accuracies = []
    for step in range(60):
        led, free = behaviour(seed=2 * step, n=13), behaviour(seed=2 * step + 1, n=13)
        led = led._replace(values=led.values.detach())
        found = professor_forcing(
            discriminator, led, free._replace(values=free.values.detach() + shift)
        )
        accuracies.append(found.accuracy)
        optimiser.zero_grad()
        found.loss.backward()
        optimiser.step()
    assert max(accuracies) > 0.85
    assert abs(shift.item()) < 0.6
