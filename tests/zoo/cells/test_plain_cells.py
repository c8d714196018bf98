"""The cells without gates, each against its equations written with plain loops."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.cells.simple import (
    ClockworkCell,
    ElmanCell,
    JordanCell,
    LinearContextCell,
    ScrnCell,
    irnn_cell,
)
from saccade.zoo.cells.stacks import DeepOutputCell, DeepTransitionCell

BATCH, STEPS, D_INPUT, D_HIDDEN = 3, 7, 5, 11


def last(cell, inputs):
    return cell.unroll(inputs).outputs[:, -1]


def test_elman_agrees_with_a_loop_over_units(inputs):
    cell = ElmanCell(D_INPUT, D_HIDDEN)
    u, w, b, _ = cell.kernel.all_weights[0]
    b.data.normal_()
    state = [[0.0] * D_HIDDEN for _ in range(BATCH)]
    for t in range(STEPS):
        for row in range(BATCH):
            old = torch.tensor(state[row])
            state[row] = [
                torch.tanh(u[k] @ inputs[row, t] + w[k] @ old + b[k]).item()
                for k in range(D_HIDDEN)
            ]
    torch.testing.assert_close(last(cell, inputs), torch.tensor(state))


def test_an_irnn_begins_by_copying_its_state():
    cell = irnn_cell(D_INPUT, D_HIDDEN)
    state = torch.rand(BATCH, D_HIDDEN)
    silence = torch.zeros(BATCH, 101, D_INPUT)
    assert torch.equal(cell.unroll(silence, state).state, state)
    assert cell.kernel.all_weights[0][0].std() < 0.0015


def test_in_an_irnn_a_gradient_comes_back_from_any_distance():
    cell = irnn_cell(D_INPUT, D_HIDDEN)
    state = torch.rand(BATCH, D_HIDDEN, requires_grad=True)
    cell.unroll(torch.zeros(BATCH, 101, D_INPUT), state).state.sum().backward()
    assert torch.equal(state.grad, torch.ones_like(state))
    small = irnn_cell(D_INPUT, D_HIDDEN, scale=0.01)
    assert small.kernel.all_weights[0][1].diagonal().tolist() == pytest.approx([0.01] * D_HIDDEN)


def test_a_linear_context_is_the_sum_of_what_it_was_given(inputs):
    cell = LinearContextCell(D_INPUT, D_HIDDEN)
    expected = inputs.sum(1) @ cell.input_proj.weight.T
    torch.testing.assert_close(last(cell, inputs), expected)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_jordan_reads_its_last_output(inputs, decay):
    cell = JordanCell(D_INPUT, D_HIDDEN, decay=decay)
    context = torch.zeros(BATCH, D_HIDDEN)
    for t in range(STEPS):
        hidden = torch.tanh(cell.input_proj(inputs[:, t]) + cell.context_proj(context))
        output = torch.tanh(cell.output_proj(hidden))
        context = decay * context + output
    torch.testing.assert_close(last(cell, inputs), output)


def test_jordan_refuses_a_context_that_would_grow_without_end():
    with pytest.raises(UsageError, match="below 1, got 1"):
        JordanCell(2, 3, decay=1.0)


def test_scrn_agrees_with_the_papers_equations(inputs):
    cell = ScrnCell(D_INPUT, D_HIDDEN, n_slow=3, alpha=0.9)
    fast, slow = torch.zeros(BATCH, 8), torch.zeros(BATCH, 3)
    w, p = cell.state_proj.weight.split([8, 3], dim=1)
    for t in range(STEPS):
        slow = 0.1 * (inputs[:, t] @ cell.slow_input.weight.T) + 0.9 * slow
        fast = torch.sigmoid(slow @ p.T + cell.fast_input(inputs[:, t]) + fast @ w.T)
    torch.testing.assert_close(last(cell, inputs), torch.cat([fast, slow], dim=1))


def test_scrn_is_a_plain_network_with_a_block_matrix(inputs):
    """[[W, P], [0, alpha I]], read with the slow part of the step itself."""
    cell = ScrnCell(D_INPUT, D_HIDDEN, n_slow=3, alpha=0.9)
    state = torch.randn(BATCH, D_HIDDEN)
    silence = torch.zeros(BATCH, D_INPUT)
    w, p = cell.state_proj.weight.split([8, 3], dim=1)
    block = torch.zeros(D_HIDDEN, D_HIDDEN)
    block[:8, :8], block[:8, 8:], block[8:, 8:] = w, 0.9 * p, 0.9 * torch.eye(3)
    total = state @ block.T
    expected = torch.cat([(total[:, :8] + cell.fast_input.bias).sigmoid(), total[:, 8:]], dim=1)
    torch.testing.assert_close(cell.step(silence, state).output, expected)


def test_scrn_needs_both_kinds_of_units():
    with pytest.raises(UsageError, match="got 4 slow of 4"):
        ScrnCell(2, 4, n_slow=4)


def test_clockwork_groups_move_only_when_their_time_has_come(inputs):
    cell = ClockworkCell(D_INPUT, 8, periods=(4, 1, 2))
    assert cell.periods.tolist() == [1, 1, 1, 2, 2, 2, 4, 4]
    outputs = cell.unroll(inputs).outputs
    moved = (outputs[:, 1:] != outputs[:, :-1]).all(0)  # [step - 1, unit]
    for step in range(1, STEPS):
        for unit, period in enumerate(cell.periods.tolist()):
            assert bool(moved[step - 1, unit]) == (step % period == 0)


def test_a_clockwork_group_reads_slower_ones_and_never_a_faster_one():
    cell = ClockworkCell(D_INPUT, 8, periods=(1, 2, 4))
    state = cell.start(1)
    hidden = torch.zeros(1, 8, requires_grad=True)
    new = cell.step(torch.zeros(1, D_INPUT), state._replace(hidden=hidden)).output[0]
    for unit, period in enumerate(cell.periods.tolist()):
        (grad,) = torch.autograd.grad(new[unit], hidden, retain_graph=True)
        assert torch.equal(grad[0] != 0, cell.periods >= period)


def test_clockwork_agrees_with_a_loop_over_groups(inputs):
    cell = ClockworkCell(D_INPUT, 8, periods=(1, 2, 4))
    hidden = torch.zeros(BATCH, 8)
    groups = [slice(0, 3), slice(3, 6), slice(6, 8)]
    w, u = cell.state_proj.weight, cell.input_proj
    for t in range(STEPS):
        old = hidden.clone()
        for g, (group, period) in enumerate(zip(groups, (1, 2, 4), strict=True)):
            if t % period == 0:
                slower = slice(groups[g].start, 8)
                total = u(inputs[:, t])[:, group] + old[:, slower] @ w[group, slower].T
                hidden = hidden.clone()
                hidden[:, group] = total.tanh()
    torch.testing.assert_close(last(cell, inputs), hidden)


def test_clockwork_refuses_periods_that_make_no_sense():
    with pytest.raises(UsageError, match=r"at least 1, got \(0, 2\)"):
        ClockworkCell(2, 4, periods=(0, 2))


@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("has_shortcut", [False, True])
def test_a_deep_transition_agrees_with_the_papers_equation(inputs, n_layers, has_shortcut):
    cell = DeepTransitionCell(D_INPUT, D_HIDDEN, n_layers=n_layers, has_shortcut=has_shortcut)
    h = torch.zeros(BATCH, D_HIDDEN)
    for t in range(STEPS):
        z = cell.state_proj(h) + cell.input_proj(inputs[:, t])
        for layer in cell.deeper:
            z = layer(torch.tanh(z))
        h = torch.tanh(z + cell.shortcut(h) if has_shortcut else z)
    torch.testing.assert_close(last(cell, inputs), h)


def test_a_deep_transition_of_one_layer_is_an_elman_cell(inputs):
    deep, plain = DeepTransitionCell(D_INPUT, D_HIDDEN, n_layers=1), ElmanCell(D_INPUT, D_HIDDEN)
    u, w, b, _ = plain.kernel.all_weights[0]
    with torch.no_grad():
        u.copy_(deep.input_proj.weight)
        w.copy_(deep.state_proj.weight)
        b.copy_(deep.input_proj.bias)
    torch.testing.assert_close(last(deep, inputs), last(plain, inputs))
    with pytest.raises(UsageError, match="at least 1 layer, got 0"):
        DeepTransitionCell(2, 3, n_layers=0)


def test_a_deep_output_is_a_network_upon_each_step(inputs):
    inner = ElmanCell(D_INPUT, D_HIDDEN)
    cell = DeepOutputCell(inner, n_layers=2)
    expected = inner.unroll(inputs).outputs
    for layer in (cell.output_layers[0], cell.output_layers[2]):
        expected = torch.tanh(layer(expected))
    torch.testing.assert_close(cell.unroll(inputs).outputs, expected)
