"""RAM against its equations written with torch's own tape, and its controls."""

import math

import pytest
import torch
from torch.distributions import Normal

from saccade.errors import UsageError
from saccade.zoo.models.ram import Ram
from saccade.zoo.objectives.reinforce import hybrid_loss, stepwise_loss
from saccade.zoo.sensors.retina import Retina

BATCH, SAMPLES, GLIMPSES, SIZE, CLASSES = 3, 2, 5, (19, 23), 7


def make(**changes):
    torch.manual_seed(0)
    given = {"n_glimpses": GLIMPSES, "d_glimpse": 11, "d_hidden": 13, **changes}
    return Ram(size=SIZE, n_classes=CLASSES, retina=Retina(size=4, n_scales=2), **given)


@pytest.fixture
def images():
    torch.manual_seed(1)
    return torch.rand(BATCH, *SIZE)


def by_the_equations(model, images, centres):
    """States along given places, one image and one glimpse after the other, on torch's tape."""
    states = []
    for image, path in zip(images, centres, strict=True):
        h = torch.zeros(1, 13)
        states.append([])
        for place in path:
            patch = model.retina.look(image[None], place[None, None]).flatten()[None]
            g_patch = torch.relu(model.of_patch(patch))
            g_place = torch.relu(model.of_place(place[None]))
            g = torch.relu(model.what(g_patch) + model.where(g_place))
            h = torch.relu(model.keep(h) + model.read(g))
            states[-1].append(h[0])
    return torch.stack([torch.stack(each) for each in states])


def test_states_and_answers_are_those_of_the_papers_equations(images):
    model = make()
    looked = model.look(images, n_samples=SAMPLES, is_drawn=True)
    for sample in range(SAMPLES):
        expected = by_the_equations(model, images, looked.centres[sample])
        torch.testing.assert_close(looked.states[sample], expected.detach())
        torch.testing.assert_close(looked.logits[sample], model.answer(expected))


LABELS = torch.tensor([3, 0, 6])
LOSSES = {
    "reward at the end": lambda logits, **chosen: hybrid_loss(logits[:, :, -1], LABELS, **chosen),
    "reward for each glimpse": lambda logits, **chosen: stepwise_loss(
        logits, LABELS, early_weight=0.3, discount=0.7, reinforce_weight=0.2, **chosen
    ),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_gradient_written_out_is_that_of_torchs_tape(images, loss):
    model = make()
    looked = model.look(images, n_samples=SAMPLES, is_drawn=True)
    loss(looked.logits, log_prob=looked.log_prob, baseline=looked.expected[..., 1]).loss.backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    states = torch.stack(
        [by_the_equations(model, images, each) for each in looked.centres]
    )  # [sample, batch, glimpse, d_hidden]
    before = states[:, :, :-1]
    means = model.mean(before)
    log_prob = Normal(means, model.std).log_prob(looked.centres[:, :, 1:].detach()).sum(-1)
    torch.testing.assert_close(looked.log_prob, log_prob)
    baseline = model.baseline(before.detach())[..., 1]
    loss(model.answer(states), log_prob=log_prob, baseline=baseline).loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad.abs().sum() > 0, name
        torch.testing.assert_close(found[name], weight.grad, msg=lambda m, name=name: f"{name} {m}")


def test_reward_teaches_where_to_look_and_what_is_kept_for_that_but_not_the_answer(images):
    model = make()
    looked = model.look(images, is_drawn=True)
    looked.log_prob.sum().backward()
    untaught = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert untaught == {"answer.weight", "answer.bias", *_named("baseline", model)}


def test_the_baseline_teaches_itself_alone(images):
    model = make()
    model.look(images, is_drawn=True).expected.sum().backward()
    taught = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert taught == _named("baseline", model)


def _named(part, model):
    return {name for name, _ in model.named_parameters() if name.startswith(part)}


def test_the_first_glimpse_is_at_the_centre_and_the_answer_is_at_the_means(images):
    model = make()
    looked = model.look(images, is_drawn=False)
    assert (looked.centres[:, :, 0] == 0).all()
    torch.testing.assert_close(model(images), looked.logits[0, :, -1])
    means = model.mean(looked.states[:, :, :-1])
    torch.testing.assert_close(looked.centres[:, :, 1:], means)


def test_drawn_places_spread_by_std_around_the_means(images):
    model = make(std=0.2)
    looked = model.look(images, n_samples=500, is_drawn=True)
    off = looked.centres[:, :, 1:] - model.mean(looked.states[:, :, :-1])
    n = off.numel()
    assert abs(off.mean().item()) < 4 * 0.2 / math.sqrt(n)
    assert off.std().item() == pytest.approx(0.2, rel=4 / math.sqrt(2 * n))
    model.set_std(0.0001)
    spread = model.look(images, n_samples=50, is_drawn=True).centres.std(0)
    assert spread.max() < 0.01


def test_samples_of_an_image_are_passes_over_that_image(images):
    model = make(std=1e-6)
    looked = model.look(images, n_samples=SAMPLES, is_drawn=True)
    torch.testing.assert_close(
        looked.logits[:, :, -1], model(images).expand(SAMPLES, -1, -1), atol=1e-3, rtol=1e-3
    )


def test_random_glimpses_are_anywhere_and_do_not_heed_the_image(images):
    model = make(policy="random")
    torch.manual_seed(5)
    looked = model.look(images, n_samples=400, is_drawn=False)
    torch.manual_seed(5)
    other = model.look(1 - images, n_samples=400, is_drawn=False)
    assert torch.equal(looked.centres, other.centres)
    assert looked.centres.abs().max() <= 1 and looked.centres.abs().max() > 0.99
    assert looked.centres.std((0, 1, 3)).tolist() == pytest.approx([1 / math.sqrt(3)] * 5, rel=0.05)


def test_the_central_control_sees_the_middle_alone(images):
    model = make(policy="central")
    looked = model.look(images, is_drawn=True)
    assert looked.centres.shape == (1, BATCH, 1, 2) and looked.log_prob.shape == (1, BATCH, 0)
    edged = images.clone()
    edged[:, :2] = 0.5  # the coarser patch has 8 of 19 rows
    torch.testing.assert_close(model(edged), model(images))


def test_an_image_it_was_not_made_for_is_refused(images):
    with pytest.raises(UsageError, match="expected images of 19 x 23 pixels, got 23 x 19"):
        make()(images.mT)
    with pytest.raises(UsageError, match="20 x 20 pixels is larger than the image of 19 x 23"):
        Ram(size=SIZE, n_classes=2, retina=Retina(size=20), n_glimpses=2)
