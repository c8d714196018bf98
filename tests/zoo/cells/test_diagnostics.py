"""What people learn from: exploding gradients, iterated maps, things done by hand."""

import sys

import pytest
import torch

from saccade.errors import MissingPackageError
from saccade.zoo.cells import lectures as bptt
from saccade.zoo.cells.gru import GruCell
from saccade.zoo.cells.lectures import (
    attracted,
    comparing_rnn,
    curves,
    draw_attracted,
    draw_curves,
    draw_gradient_norms,
    draw_tanh_slope,
    gradient_norms,
    iterate,
    orbit,
    scalar_gradients,
    summing_rnn,
    tanh_slope,
)
from saccade.zoo.cells.simple import irnn_cell
from saccade.zoo.cells.stacks import make_cell

BATCH, STEPS, D_INPUT, D_HIDDEN, D_OUTPUT = 3, 7, 5, 11, 2


def test_the_quoted_numbers_are_the_fiftieth_power_and_the_formula_gives_the_forty_ninth():
    found = {g.label: g.value for g in scalar_gradients()}
    assert found["dh(50)/dh(0) = 1.1^50"] == pytest.approx(117.4, abs=0.05)
    assert found["dh(50)/dh(0) = 0.9^50"] == pytest.approx(0.00515, abs=5e-6)
    assert found["dh(50)/dh(1) = 1.1^49"] == pytest.approx(106.7, abs=0.05)
    assert found["dh(50)/dh(1) = 0.9^49"] == pytest.approx(0.00573, abs=5e-6)


@pytest.mark.parametrize("weight", [1.1, 0.9])
def test_autograd_finds_the_forty_ninth_power_between_step_1_and_step_50(weight):
    states = [torch.tensor(1.0, dtype=torch.float64, requires_grad=True)]
    for _ in range(49):
        states.append(weight * states[-1])
    (grad,) = torch.autograd.grad(states[49], states[0])  # h(50) by h(1)
    (expected,) = [g.value for g in scalar_gradients((weight,)) if g.n_factors == 49]
    assert grad.item() == pytest.approx(expected)


def test_gradient_norms_tell_a_cell_that_forgets_from_one_that_does_not():
    inputs = torch.randn(BATCH, 50, D_INPUT)
    plain = gradient_norms(make_cell("elman", D_INPUT, D_HIDDEN), inputs)
    copying = gradient_norms(irnn_cell(D_INPUT, D_HIDDEN), inputs, torch.ones(BATCH, D_HIDDEN))
    unitary = gradient_norms(make_cell("unitary", D_INPUT, 22), inputs)
    assert len(plain) == 51
    assert plain[0] < 1e-4 * plain[-1]
    torch.testing.assert_close(copying, torch.ones(51), atol=0.1, rtol=0)
    torch.testing.assert_close(unitary, torch.ones(51), atol=0.1, rtol=0)
    assert all(
        gradient_norms(make_cell(name, D_INPUT, 22), inputs[:, :3]).isfinite().all()
        for name in ("lstm", "clockwork", "scrn", "gru")
    )


def test_within_a_basin_the_gradient_vanishes_and_on_the_border_it_explodes():
    found = attracted(3.0)
    middle = len(found.starts) // 2
    assert found.starts[middle] == 0
    assert found.gradients[middle] == pytest.approx(3.0**50)
    assert found.gradients[0] < 1e-20 and found.gradients[-1] < 1e-20
    assert found.ends[0] == -found.ends[-1] != 0
    fixed = found.ends[-1]
    assert torch.tanh(3 * fixed) == pytest.approx(fixed.item())
    assert attracted(0.9).gradients.max() < 0.01  # below one all is forgotten


def test_the_iterated_map_ends_in_an_orbit_of_period_four():
    values = orbit()
    assert len(values) == 4
    torch.testing.assert_close(iterate(values, n_times=1), values.roll(-1))
    torch.testing.assert_close(iterate(values, n_times=4), values)
    assert len(values.unique()) == 4
    # Every value of the orbit solves f(f(f(f(x)))) = x and not f(f(x)) = x.
    assert (iterate(values, n_times=2) - values).abs().min() > 0.04
    for start in (0.1, 0.42, 0.77):
        torch.testing.assert_close(orbit(start), values)


def test_other_rates_have_other_periods_and_chaos_has_none():
    assert [len(orbit(rate=rate)) for rate in (2.5, 3.2, 3.5, 3.55, 3.9)] == [1, 2, 4, 8, 0]


def test_the_curves_are_compositions():
    once, twice, thrice = curves((1, 2, 3), n_points=101)
    x = torch.linspace(0, 1, 101, dtype=torch.float64)
    torch.testing.assert_close(once, 3.5 * x * (1 - x))
    torch.testing.assert_close(thrice, 3.5 * twice * (1 - twice))


def test_gradients_by_hand_are_autograds():
    rnn = bptt.TinyRnn(
        torch.randn(D_HIDDEN, D_INPUT, dtype=torch.float64, requires_grad=True),
        torch.randn(D_OUTPUT, D_HIDDEN, dtype=torch.float64, requires_grad=True),
        torch.randn(D_HIDDEN, D_HIDDEN, dtype=torch.float64, requires_grad=True),
    )
    x = torch.randn(STEPS, BATCH, D_INPUT, dtype=torch.float64)
    target = torch.randn(STEPS, BATCH, D_OUTPUT, dtype=torch.float64)
    run = bptt.forward(rnn, x)
    expected = torch.autograd.grad(bptt.squared_error(run.y, target), rnn)
    with torch.no_grad():
        found = bptt.backward(rnn, x, run, target=target)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_forward_pass_by_hand_is_torchs():
    rnn = bptt.TinyRnn(*(torch.randn(n, m) for n, m in ((11, 5), (2, 11), (11, 11))))
    kernel = torch.nn.RNN(D_INPUT, D_HIDDEN, bias=False)
    kernel.weight_ih_l0.data.copy_(rnn.u)
    kernel.weight_hh_l0.data.copy_(rnn.w)
    x = torch.randn(STEPS, BATCH, D_INPUT)
    torch.testing.assert_close(bptt.forward(rnn, x).h, kernel(x)[0])


def test_one_network_sums_its_inputs():
    inputs = torch.randn(BATCH, STEPS, 1)
    torch.testing.assert_close(summing_rnn().read(inputs), inputs[:, :, 0].cumsum(1))


def test_another_says_which_of_two_totals_is_larger():
    inputs = torch.randn(101, STEPS, 2)
    first, second = inputs.cumsum(1).unbind(2)
    clear = (first - second).abs() > 0.5  # where it is close, it says so: about a half
    said = comparing_rnn().read(inputs)
    assert torch.equal(said[clear] > 0.5, (first > second)[clear])
    assert (said[clear] - 0.5).abs().min() > 0.4


def test_tanh_is_less_steep_the_more_its_input_varies():
    found = tanh_slope((0.05, 0.5, 2.0))
    sampled = 1 - torch.tanh(0.5 * torch.randn(1_000_000)).square()
    assert found.mean[1] == pytest.approx(sampled.mean().item(), abs=2e-3)
    assert (found.mean[1:] < found.mean[:-1]).all() and found.mean[0] > 0.99
    assert (found.quarter <= found.three_quarters).all()


def test_every_drawing_is_a_figure_with_its_axes_named():
    pytest.importorskip("matplotlib")
    norms = gradient_norms(GruCell(2, 3), torch.randn(2, 5, 2))
    metrics = [
        draw_gradient_norms({"gru": norms}),
        draw_attracted(attracted()),
        draw_curves(),
        draw_tanh_slope(tanh_slope()),
    ]
    assert [len(figure.axes) for figure in metrics] == [1, 2, 4, 1]
    for figure in metrics:
        figure.canvas.draw()
        assert all(axes.get_xlabel() for axes in figure.axes)


def test_without_matplotlib_the_package_to_install_is_named(monkeypatch):
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="'matplotlib'") as caught:
        draw_curves()
    assert "saccade[plot]" in caught.value.hint
