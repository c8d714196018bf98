"""LSTM, GRU and the normalised LSTMs, against torch's own modules and their equations."""

import pytest
import torch
from torch import nn

from saccade.zoo.cells.gru import GruCell
from saccade.zoo.cells.lstm import BatchNormLstmCell, LayerNormLstmCell, LstmCell, LstmState

BATCH, STEPS, D_INPUT, D_HIDDEN = 3, 7, 5, 11


@pytest.mark.parametrize(("cell", "kind"), [(LstmCell, nn.LSTM), (GruCell, nn.GRU)])
def test_a_gated_cell_with_torchs_weights_is_torchs_module(inputs, cell, kind):
    theirs = kind(D_INPUT, D_HIDDEN, batch_first=True)
    ours = cell(D_INPUT, D_HIDDEN)
    ours.kernel.load_state_dict(theirs.state_dict())
    state, outputs = ours.start(BATCH), []
    for x in inputs.unbind(1):
        output, state = ours.step(x, state)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs, dim=1), theirs(inputs)[0])


def test_an_lstm_padded_at_the_end_agrees_with_torchs_packed_sequences(inputs, right_padded):
    cell = LstmCell(D_INPUT, D_HIDDEN)
    packed = nn.utils.rnn.pack_padded_sequence(
        inputs, right_padded.sum(1), batch_first=True, enforce_sorted=False
    )
    outputs, (hidden, carried) = cell.kernel(packed)
    outputs, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
    found = cell.unroll(inputs, mask=right_padded)
    torch.testing.assert_close(found.outputs, outputs)
    torch.testing.assert_close(found.state, LstmState(hidden[0], carried[0]))


def test_with_the_forget_gate_open_and_the_others_shut_value_and_gradient_are_carried():
    """The carousel: f = 1 and i = o = 0, so the gradient by c_t is that by c_(t+1)."""
    cell = LstmCell(D_INPUT, D_HIDDEN)
    _, _, bias, _ = cell.kernel.all_weights[0]
    shut = 1e4 * torch.tensor([-1.0, 1.0, 0.0, -1.0])  # i, f, g, o
    bias.data.copy_(shut.repeat_interleave(D_HIDDEN))
    first = torch.randn(BATCH, D_HIDDEN, requires_grad=True)
    state = LstmState(torch.randn(BATCH, D_HIDDEN), first)
    for x in torch.randn(STEPS, BATCH, D_INPUT):
        state = cell.step(x, state).state
        assert torch.equal(state.cell, first)
        assert (state.hidden == 0).all()
    signal = torch.randn(BATCH, D_HIDDEN)
    (grad,) = torch.autograd.grad((state.cell * signal).sum(), first)
    assert torch.equal(grad, signal)


def test_a_new_lstm_remembers():
    for cell in (LstmCell(2, 3), LayerNormLstmCell(2, 3), BatchNormLstmCell(2, 3)):
        bias = cell.bias if not isinstance(cell, LstmCell) else cell.kernel.bias_ih_l0
        assert bias.sum() == 3 and set(bias.tolist()) == {0.0, 1.0}
    first = LstmState(torch.zeros(2, 3), torch.ones(2, 3))
    kept = LstmCell(2, 3).step(torch.zeros(2, 2), first).state.cell
    torch.testing.assert_close(kept, torch.full((2, 3), torch.tensor(1.0).sigmoid().item()))


def test_a_gru_with_its_update_gate_open_keeps_its_state():
    cell = GruCell(D_INPUT, D_HIDDEN)
    cell.kernel.bias_ih_l0.data[D_HIDDEN : 2 * D_HIDDEN] = 1e4
    state = torch.randn(BATCH, D_HIDDEN)
    assert torch.equal(cell.step(torch.randn(BATCH, D_INPUT), state).state, state)


def gates_by_hand(cell, recurrent, from_input, state):
    f, i, o, g = (recurrent + from_input).split(D_HIDDEN, dim=1)
    carried = torch.sigmoid(f) * state.cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o), carried


def normed(x, gain, dim, eps=1e-5):
    mean = x.mean(dim, keepdim=True)
    variance = (x - mean).square().mean(dim, keepdim=True)
    return gain * (x - mean) / (variance + eps).sqrt()


def test_the_layer_norm_lstm_agrees_with_the_papers_equations(inputs):
    cell = LayerNormLstmCell(D_INPUT, D_HIDDEN)
    for parameter in cell.parameters():
        parameter.data.add_(torch.randn_like(parameter))
    state = cell.start(BATCH)
    for x in inputs.unbind(1):
        recurrent = normed(state.hidden @ cell.state_proj.weight.T, cell.state_gain, 1)
        from_input = normed(x @ cell.input_proj.weight.T, cell.input_gain, 1) + cell.bias
        o, carried = gates_by_hand(cell, recurrent, from_input, state)
        shown = normed(carried, cell.cell_norm.weight, 1) + cell.cell_norm.bias
        state = LstmState(o * torch.tanh(shown), carried)
    torch.testing.assert_close(cell.unroll(inputs).outputs[:, -1], state.hidden)


def test_a_layer_normed_lstm_does_not_see_the_scale_of_its_inputs(inputs):
    cell = LayerNormLstmCell(D_INPUT, D_HIDDEN)
    once = cell.unroll(10 * inputs).outputs
    torch.testing.assert_close(cell.unroll(1000 * inputs).outputs, once, atol=1e-3, rtol=1e-3)


def test_the_batch_norm_lstm_agrees_with_the_papers_equations_in_training():
    cell = BatchNormLstmCell(D_INPUT, D_HIDDEN)
    inputs = torch.randn(13, STEPS, D_INPUT)
    cell.cell_bias.data.normal_()
    state = LstmState(torch.zeros(13, D_HIDDEN), torch.zeros(13, D_HIDDEN))
    for x in inputs.unbind(1):
        recurrent = normed(state.hidden @ cell.state_proj.weight.T, cell.state_norm.gain, 0)
        from_input = normed(x @ cell.input_proj.weight.T, cell.input_norm.gain, 0) + cell.bias
        o, carried = gates_by_hand(cell, recurrent, from_input, state)
        shown = normed(carried, cell.cell_norm.gain, 0) + cell.cell_bias
        state = LstmState(o * torch.tanh(shown), carried)
    torch.testing.assert_close(
        cell.unroll(inputs).outputs[:, -1], state.hidden, atol=1e-5, rtol=1e-4
    )


def test_batch_norm_keeps_statistics_for_each_step():
    cell = BatchNormLstmCell(D_INPUT, D_HIDDEN, n_steps=5)
    scale = torch.arange(1.0, 4)[:, None]  # each step's inputs have a spread of their own
    for _ in range(60):
        cell.unroll(scale * torch.randn(101, 3, D_INPUT))
    weight = cell.input_proj.weight
    expected = scale.square() * weight.square().sum(1)
    found = cell.input_norm.variance[:3]
    torch.testing.assert_close(found, expected, atol=0, rtol=0.3)
    assert (cell.input_norm.variance[3:] == 1).all()


def test_steps_that_training_never_reached_use_the_last_statistics_it_has():
    cell = BatchNormLstmCell(D_INPUT, D_HIDDEN, n_steps=5)
    cell.unroll(torch.randn(13, 3, D_INPUT))
    cell.eval()
    norm, values = cell.input_norm, torch.randn(BATCH, 4 * D_HIDDEN)
    at = [norm(values, torch.full((BATCH,), time)) for time in range(9)]
    assert not torch.equal(at[1], at[2])
    assert all(torch.equal(at[2], later) for later in at[3:])
    cell.train().unroll(torch.randn(13, 9, D_INPUT))  # beyond n_steps they share the last
    assert int(norm.n_seen) == 5


def test_padding_does_not_enter_the_statistics(inputs, right_padded):
    plain, padded = (BatchNormLstmCell(D_INPUT, D_HIDDEN) for _ in range(2))
    padded.load_state_dict(plain.state_dict())
    garbage = inputs.masked_fill(~right_padded[:, :, None], 1e9)
    unrolled = padded.unroll(garbage, mask=right_padded)  # the last three steps have one row
    assert unrolled.outputs.isfinite().all() and int(padded.input_norm.n_seen) == 4
    plain.unroll(inputs[:2, :4])  # what is left of the third step on: two rows
    assert padded.input_norm.mean.abs().max() < 10
    torch.testing.assert_close(padded.input_norm.mean[2:4], plain.input_norm.mean[2:4])


def test_told_of_a_long_range_a_new_cell_keeps_values_that_long():
    """A gate with bias log(n - 1) keeps a value for n steps on average."""
    lstm, gru = LstmCell(D_INPUT, 101, longest=150), GruCell(D_INPUT, 101, longest=150)
    i, f, g, o = lstm.kernel.bias_ih_l0.detach().split(101)
    assert torch.equal(i, -f) and (g == 0).all() and (o == 0).all()
    _, update, _ = gru.kernel.bias_ih_l0.detach().split(101)
    for keeping in (f, update):
        steps = 1 / (1 - keeping.sigmoid())
        assert steps.min() >= 2 and 130 < steps.max() <= 150
        assert steps.mean() == pytest.approx(76, abs=15)
