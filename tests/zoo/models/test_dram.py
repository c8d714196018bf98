"""DRAM against its equations one glimpse at a time, what teaches what, and readers together."""

import itertools
import math

import pytest
import torch
from torch.distributions import Normal
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.cells.lstm import LstmState
from saccade.zoo.models.dram import COARSE, Dram, dram_loss, from_left, read_objects, read_together
from saccade.zoo.sensors.retina import Retina

BATCH, SAMPLES, OBJECTS, GLIMPSES, CLASSES, HIDDEN, SIZE = 3, 2, 3, 2, 5, 7, (29, 31)


def make(**changes):
    torch.manual_seed(0)
    return Dram(
        size=SIZE,
        n_classes=CLASSES,
        retina=Retina(size=4, n_scales=2),
        n_objects=OBJECTS,
        n_glimpses=GLIMPSES,
        d_hidden=HIDDEN,
        **changes,
    )


@pytest.fixture
def images():
    torch.manual_seed(1)
    return torch.rand(BATCH, *SIZE)


def by_the_equations(model, image, places):
    """Answers, means and states that chose each place, of one image along given places."""
    coarse = functional.adaptive_avg_pool2d(image[None, None], COARSE)
    r2 = torch.tanh(model.context.state(model.context.filters(coarse).flatten(1)))
    lower, upper = model.lower.start(1), LstmState(r2, torch.zeros_like(r2))
    answers, means, states = [], [], []
    for place in places:
        states.append(r2[0])
        means.append(model.mean(r2)[0])
        patch = model.retina.look(image[None], place[None, None]).flatten()[None]
        glimpse = model.what(patch) * model.where(place[None])
        r1, lower = model.lower.step(glimpse, lower)
        r2, upper = model.upper.step(r1, upper)
        answers.append(model.answer(r1)[0])
    return (
        torch.stack(answers).unflatten(0, (OBJECTS, GLIMPSES)),
        torch.stack(means),
        torch.stack(states),
    )


def test_answers_and_densities_are_those_of_the_papers_equations(images):
    model = make(std=0.2)
    looked = model.look(images, n_samples=SAMPLES, is_drawn=True)
    assert looked.centres.shape == (SAMPLES, BATCH, OBJECTS * GLIMPSES, 2)
    for sample in range(SAMPLES):
        for row, image in enumerate(images):
            places = looked.centres[sample, row]
            answers, means, states = by_the_equations(model, image, places)
            torch.testing.assert_close(looked.logits[sample, row], answers)
            log_prob = Normal(means, 0.2).log_prob(places).sum(-1)
            torch.testing.assert_close(looked.log_prob[sample, row], log_prob)
            torch.testing.assert_close(looked.expected[sample, row], model.baseline(states))


def test_a_pass_at_the_means_looks_where_the_means_are(images):
    model = make()
    looked = model.look(images, is_drawn=False)
    for row, image in enumerate(images):
        _, means, _ = by_the_equations(model, image, looked.centres[0, row])
        torch.testing.assert_close(looked.centres[0, row], means)
    torch.testing.assert_close(model(images), looked.logits[0, :, :, -1])


TARGET = torch.tensor([[1, 2, 4], [0, 3, 4], [2, 2, 4]])


@pytest.mark.parametrize(("early", "discount", "weight"), [(0.0, 1.0, 1.0), (0.3, 0.5, 0.2)])
def test_the_loss_credits_a_place_with_what_the_looks_from_there_on_add(
    images, early, discount, weight
):
    looked = make().look(images, n_samples=SAMPLES, is_drawn=True)
    loss = dram_loss(looked, TARGET, early_weight=early, discount=discount, reward_weight=weight)
    n, total = OBJECTS * GLIMPSES, 0.0
    for sample, row in itertools.product(range(SAMPLES), range(BATCH)):
        right = TARGET[row].repeat_interleave(GLIMPSES)
        said = looked.logits[sample, row].flatten(0, 1).log_softmax(-1)[range(n), right].tolist()
        added = [nats - (said[at - 1] if at % GLIMPSES else 0) for at, nats in enumerate(said)]
        total -= sum(said[GLIMPSES - 1 :: GLIMPSES])
        before = sum(nats for at, nats in enumerate(said) if at % GLIMPSES != GLIMPSES - 1)
        total -= early * before / (GLIMPSES - 1)
        for at in range(n):
            to_come = sum(discount ** (later - at) * added[later] for later in range(at, n))
            off = to_come - looked.expected[sample, row, at, right[at]].item()
            total += off**2 / n - weight * off * looked.log_prob[sample, row, at].item()
    assert loss.loss.item() == pytest.approx(total / (SAMPLES * BATCH), rel=1e-4)


def test_all_that_looks_add_is_the_bound_whose_gradient_is_that_of_the_last_answers(images):
    model = make()
    looked = model.look(images, n_samples=SAMPLES, is_drawn=True)
    right = TARGET[None, :, :, None].expand(SAMPLES, -1, -1, 1)
    likelihood = looked.logits[:, :, :, -1].log_softmax(-1).gather(3, right).sum(2).mean()
    loss = dram_loss(looked, TARGET)
    assert loss.bound.item() == pytest.approx(likelihood.item(), rel=1e-5)
    found, expected = (
        torch.autograd.grad(each, model.answer.weight, retain_graph=True)
        for each in (loss.loss, -likelihood)
    )
    torch.testing.assert_close(found, expected)


def test_the_context_says_where_to_look_and_never_what_is_there(images):
    model = make()
    looked = model.look(images, is_drawn=True)
    parts = ("context.", "upper.", "mean.", "baseline.")
    looked.logits.sum().backward(retain_graph=True)
    taught = {name for name, w in model.named_parameters() if w.grad is not None and w.grad.any()}
    assert taught and not [name for name in taught if name.startswith(parts)]
    model.zero_grad()
    looked.log_prob.sum().backward()
    taught = {name for name, w in model.named_parameters() if w.grad is not None and w.grad.any()}
    seen = {"what", "where", "lower"}  # the gradient of the policy goes on to what was seen
    assert {name.partition(".")[0] for name in taught} == {"context", "upper", "mean", *seen}


def test_readers_together_are_averaged_over_passes_and_multiplied(images):
    forward, backward = make(std=1e-6), make(std=1e-6, is_backward=True)
    torch.nn.init.normal_(backward.answer.weight)
    found = read_together([forward, backward], images, n_samples=SAMPLES)
    there = forward(images).softmax(-1)
    back = backward(images).softmax(-1)[:, [1, 0, 2]]  # the last answer is "no more"
    product = there * back
    torch.testing.assert_close(
        found.exp(), product / product.sum(-1, keepdim=True), atol=1e-3, rtol=1e-3
    )


def test_averaging_is_the_mean_of_probabilities_not_of_logits(images):
    model = make(std=0.5)
    torch.manual_seed(3)
    found = read_together([model], images, n_samples=11).exp()
    torch.manual_seed(3)
    passes = model.look(images, n_samples=11, is_drawn=True).logits[..., -1, :]
    torch.testing.assert_close(found, passes.softmax(-1).mean(0))
    assert math.isclose(found.sum().item(), BATCH * OBJECTS, rel_tol=1e-5)


def test_what_is_read_ends_at_no_more_if_that_is_said():
    logits = torch.eye(4)[torch.tensor([[1, 2, 3], [3, 0, 1], [0, 1, 2]])]
    assert read_objects(logits, end=3) == [(1, 2), (), (0, 1, 2)]
    assert read_objects(logits, end=-1) == [(1, 2, 3), (3, 0, 1), (0, 1, 2)]
    assert torch.equal(from_left(from_left(logits)), logits)


def test_an_image_it_was_not_made_for_is_refused(images):
    with pytest.raises(UsageError, match="expected images of 29 x 31 pixels, got 31 x 29"):
        make()(images.mT)
    with pytest.raises(UsageError, match="40 x 40 pixels is larger than the image of 29 x 31"):
        Dram(size=SIZE, n_classes=2, retina=Retina(size=40), n_objects=1, n_glimpses=1)
