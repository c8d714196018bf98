"""The multi-fixation machine against enumeration of its states, and its controller on a toy."""

import itertools

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.models.foveal_rbm import (
    Fixations,
    FovealRbm,
    Visible,
    contrastive_divergence,
    foveal_loss,
)
from saccade.zoo.sensors.retina import Retina

SIZE, SIDE, GLIMPSES, CLASSES, FACTORS, HIDDEN = (7, 5), 3, 2, 3, 4, 5
MACHINE = ("filters.weight", "gates", "pool.weight", "pool.bias", "of_class")
VISIBLE_BIASES = ("class_bias", "pixel_bias")


def make(**changes):
    """Four pixels a glimpse; weights large enough for the hidden units to matter."""
    torch.manual_seed(0)
    given = {"side": SIDE, "n_glimpses": GLIMPSES, "d_factor": FACTORS, "d_hidden": HIDDEN}
    retina = Retina(size=2)
    model = FovealRbm(size=SIZE, n_classes=CLASSES, retina=retina, **{**given, **changes})
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return model


def every(n):
    """All states of n binary units."""
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)))


def energies(model, patches, gates, label, *, given=0.0):
    """The energy of each state of the hidden units, by the paper's sum, with weights unfactored."""
    found = []
    for hidden in every(HIDDEN):
        energy = -model.class_bias[label] - hidden @ (model.pool.bias + model.of_class[label])
        energy = energy - hidden @ torch.as_tensor(given).expand(HIDDEN)
        for patch, gate in zip(patches, gates, strict=True):
            weight = model.pool.weight @ torch.diag(gate) @ model.filters.weight
            energy = energy - model.pixel_bias @ patch - hidden @ weight @ patch
        found.append(energy)
    return torch.stack(found)


@pytest.fixture
def images():
    torch.manual_seed(1)
    return torch.rand(4, *SIZE)


def test_the_class_in_closed_form_is_that_of_summing_over_all_hidden_states(images):
    model = make()
    looked = model.look(images)
    found = model.logits(model.drives(looked)).log_softmax(-1)  # [batch, glimpse and 1, class]
    gates = model.gates.sigmoid()[looked.places]
    for row, n in itertools.product(range(len(images)), range(GLIMPSES + 1)):
        joint = torch.stack(
            [
                (-energies(model, looked.patches[row, :n], gates[row, :n], label)).logsumexp(0)
                for label in range(CLASSES)
            ]
        )
        torch.testing.assert_close(found[row, n], joint.log_softmax(0))
    torch.testing.assert_close(model(images).log_softmax(-1), found[:, -1])


def test_the_free_energy_is_that_of_summing_over_all_hidden_states(images):
    model = make()
    looked = model.look(images)
    gates, labels = model.gates.sigmoid()[looked.places], torch.tensor([2, 0, 1, 1])
    given = torch.randn(len(images), HIDDEN)
    before = model.pool.bias + given
    found = model.free_energy(Visible(before, looked.patches, gates, labels))
    expected = [
        -(-energies(model, looked.patches[n], gates[n], labels[n], given=given[n])).logsumexp(0)
        for n in range(len(images))
    ]
    torch.testing.assert_close(found, torch.stack(expected))


def test_the_order_of_glimpses_does_not_matter(images):
    model = make(n_glimpses=5)
    looked = model.look(images)
    turned = Fixations(looked.places.flip(1), looked.patches.flip(1))
    torch.testing.assert_close(model.drives(looked)[:, -1], model.drives(turned)[:, -1])


def all_visible(model, before, gates):
    """Every state of two free glimpses and the class, one a row."""
    pixels = every(GLIMPSES * model.retina.d_patch).view(-1, GLIMPSES, model.retina.d_patch)
    n = len(pixels)
    return Visible(
        before.expand(n * CLASSES, -1),
        pixels.repeat(CLASSES, 1, 1),
        gates.expand(n * CLASSES, -1, -1),
        torch.arange(CLASSES).repeat_interleave(n),
    )


def gradient(model, loss):
    names = (*MACHINE, *VISIBLE_BIASES)
    weights = [dict(model.named_parameters())[name] for name in names]
    grads = torch.autograd.grad(loss, weights, retain_graph=True)
    return torch.cat([grad.flatten() for grad in grads])


def rows(visible, chosen):
    return Visible(*(part[chosen] for part in visible))


@pytest.fixture
def states():
    """A machine of which every visible state is known."""
    model = make()
    gates = model.gates.sigmoid()[torch.tensor([1, 6])]
    return model, all_visible(model, model.pool.bias, gates)


def test_contrastive_divergence_of_many_steps_is_the_exact_gradient(states):
    model, visible = states
    one = [700]
    exact = model.free_energy(rows(visible, one))[0] + (-model.free_energy(visible)).logsumexp(0)
    exact = gradient(model, exact)
    torch.manual_seed(2)
    found = gradient(model, contrastive_divergence(model, rows(visible, one * 40_000), n_steps=50))
    assert (found - exact).norm() < 0.1 * exact.norm()


def test_one_step_is_near_the_exact_gradient_and_points_the_same_way(states):
    model, visible = states
    torch.manual_seed(3)
    data = torch.randint(0, len(visible.labels), (8,))
    exact = model.free_energy(rows(visible, data)).mean()
    exact = gradient(model, exact + (-model.free_energy(visible)).logsumexp(0))
    found = gradient(model, contrastive_divergence(model, rows(visible, data.repeat(3000))))
    assert torch.cosine_similarity(found, exact, dim=0) > 0.5


def test_a_machine_that_models_what_it_sees_has_nothing_to_learn(states):
    model, visible = states
    torch.manual_seed(4)
    likely = (-model.free_energy(visible)).softmax(0).detach()
    own = likely.multinomial(20_000, replacement=True)
    still = gradient(model, contrastive_divergence(model, rows(visible, own)))
    any_of_them = torch.randint(0, len(likely), (20_000,))
    moved = gradient(model, contrastive_divergence(model, rows(visible, any_of_them)))
    assert still.norm() < 0.1 * moved.norm()


def test_after_one_glimpse_both_costs_are_the_same(images):
    model = make(n_glimpses=1)
    looked, labels = model.look(images.repeat(5000, 1, 1)), torch.tensor([2, 0, 1, 1]).repeat(5000)
    torch.manual_seed(5)
    one, other = (
        foveal_loss(model, looked, labels, generative_weight=0.3, is_sequential=is_sequential)
        for is_sequential in (True, False)
    )
    assert one.nats == other.nats and one.control == other.control
    assert one.divergence.item() == pytest.approx(other.divergence.item(), abs=0.1)


def test_the_parts_of_the_loss_are_what_they_say(images):
    model, labels = make(), torch.tensor([2, 0, 1, 1])
    looked = model.look(images)
    found = foveal_loss(model, looked, labels, generative_weight=0.3)
    torch.testing.assert_close(found.loss, found.nats + 0.3 * found.divergence + found.control)
    log_p = model.logits(model.drives(looked)).log_softmax(-1)
    right = log_p[torch.arange(4), :, labels]  # [batch, glimpse and 1]
    torch.testing.assert_close(found.nats, -right.mean())
    seen, control = torch.zeros(4, SIDE**2), []
    for n in range(GLIMPSES):
        odds = model.scores(model.drives(looked)[:, n], seen)
        said = odds.sigmoid()[torch.arange(4), looked.places[:, n]]
        is_better = right[:, n + 1] > right[:, n]
        control.append(-torch.where(is_better, said, 1 - said).log())
        seen[torch.arange(4), looked.places[:, n]] = 1
    torch.testing.assert_close(found.control, torch.stack(control).mean())


def test_the_controller_teaches_itself_alone(images):
    model = make()
    looked = model.look(images)
    model.scores(model.drives(looked)[:, 0], torch.zeros(4, SIDE**2)).sum().backward()
    taught = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert taught == {"controller.weight", "controller.bias"}


def test_it_looks_where_the_controller_says_and_never_twice(images):
    model = make(n_glimpses=9)
    looked = model.look(images)
    assert looked.places.sort(1).values.tolist() == [list(range(9))] * 4
    drives, seen = model.drives(looked), torch.zeros(4, 9)
    for n in range(9):
        scores = model.scores(drives[:, n], seen).masked_fill(seen > 0, -torch.inf)
        assert torch.equal(scores.argmax(1), looked.places[:, n])
        seen[torch.arange(4), looked.places[:, n]] = 1
    patches = model.retina.look(images, model.places[looked.places]).flatten(2)
    torch.testing.assert_close(looked.patches, patches)


def test_exploring_goes_anywhere_else_as_often(images):
    model = make(n_glimpses=1)
    places = model.look(images[:1].expand(9000, -1, -1), explore=1.0).places
    assert places.flatten().bincount(minlength=9).tolist() == pytest.approx([1000] * 9, abs=150)
    half = model.look(images[:1].expand(9000, -1, -1), explore=0.5).places
    best = model.look(images[:1]).places.item()
    assert (half == best).float().mean().item() == pytest.approx(0.5 + 0.5 / 9, abs=0.03)


def test_places_are_row_by_row_and_their_patches_touch_the_edges():
    places = make().places
    half = Retina(size=2).half_sizes(height=7, width=5)[0]
    torch.testing.assert_close(places[0], half - 1)
    torch.testing.assert_close(places[-1], 1 - half)
    torch.testing.assert_close(places[1], torch.tensor([0.0, half[1] - 1]))


def test_the_controller_learns_to_look_where_something_is_to_be_seen():
    torch.manual_seed(6)
    model = FovealRbm(
        size=(9, 9), n_classes=2, retina=Retina(size=3), side=3, n_glimpses=2, d_factor=8,
        d_hidden=8,
    )  # fmt: skip
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)

    # As much ink in both: to this machine a dark glimpse says nothing, as its energy does.
    signs = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    signs = torch.stack([signs, signs.flip(0)])

    def draw(n):
        """Noise; only the square at the right of the middle row says anything."""
        images, labels = torch.rand(n, 9, 9).round(), torch.randint(0, 2, (n,))
        images[:, 3:6, 6:9] = signs[labels]
        return images, labels

    for _ in range(400):
        images, labels = draw(64)
        looked = model.look(images, explore=0.7)
        optimiser.zero_grad()
        foveal_loss(model, looked, labels, generative_weight=0.01).loss.backward()
        optimiser.step()
    images, labels = draw(500)
    assert (model.look(images).places[:, 0] == 5).all()
    assert (model(images).argmax(-1) == labels).float().mean() > 0.98
    blind = model.logits(model.drives(model.look(images, explore=1.0))[:, -1]).argmax(-1)
    assert (blind == labels).float().mean() < 0.8  # both looks miss it 7 times of 9


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="got side 3 and 10 glimpses"):
        make(n_glimpses=10)
    with pytest.raises(UsageError, match="got side 1 and 1 glimpses"):
        make(side=1, n_glimpses=1)
    with pytest.raises(UsageError, match="expected images of 7 x 5 pixels, got 5 x 7"):
        make()(torch.zeros(2, 5, 7))
