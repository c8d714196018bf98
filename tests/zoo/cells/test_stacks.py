"""Cells upon cells, both ways, carried on, and by name."""

import pytest
import torch
from torch import nn

from saccade.errors import UsageError
from saccade.zoo.cells import stacks as making
from saccade.zoo.cells.cell import (
    LearnedStart,
    is_right_padded,
    replace_rows,
    reverse,
    select_rows,
    tensors_of,
)
from saccade.zoo.cells.gru import GruCell
from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.cells.simple import ElmanCell
from saccade.zoo.cells.stacks import (
    Bidirectional,
    StackedCell,
    Stateful,
    cell_names,
    make_cell,
    make_stack,
    register_cell,
)

BATCH, STEPS, D_INPUT, D_HIDDEN = 3, 7, 5, 11


def test_a_stack_of_grus_is_torchs_stack(inputs):
    theirs = nn.GRU(D_INPUT, D_HIDDEN, num_layers=3, batch_first=True)
    ours = make_stack("gru", D_INPUT, D_HIDDEN, n_layers=3)
    for layer, cell in enumerate(ours.layers):
        for own, other in zip(cell.kernel.all_weights[0], theirs.all_weights[layer], strict=True):
            own.data.copy_(other)
    outputs, last = theirs(inputs)
    found = ours.unroll(inputs)
    torch.testing.assert_close(found.outputs, outputs)
    torch.testing.assert_close(torch.stack(found.state), last)


STACKS = [
    {},
    {"residual_from": 1},
    {"skip": 1},
    {"skip": 2},
    {"residual_from": 2, "skip": 1, "dropout": 0.5},
]


@pytest.mark.parametrize("options", STACKS, ids=str)
@pytest.mark.parametrize("name", ["lstm", "layer-norm-lstm"])
def test_a_stack_read_at_once_is_the_stack_read_step_by_step(inputs, right_padded, name, options):
    stack = make_stack(name, D_INPUT, D_HIDDEN, n_layers=3, **options).eval()
    at_once = stack.unroll(inputs, mask=right_padded)
    stepped = stack.loop(inputs, stack.start(BATCH), right_padded)
    torch.testing.assert_close(at_once.outputs, stepped.outputs)
    assert (at_once.outputs[~right_padded] == 0).all()
    states = zip(tensors_of(at_once.state), tensors_of(stepped.state), strict=True)
    for one, other in states:
        torch.testing.assert_close(one, other)


def test_residual_layers_add_what_they_read(inputs):
    stack = make_stack("gru", D_INPUT, D_HIDDEN, n_layers=2, residual_from=1)
    low, high = stack.layers
    below = low.unroll(inputs).outputs
    torch.testing.assert_close(stack.unroll(inputs).outputs, below + high.unroll(below).outputs)


def test_skip_connections_join_what_came_in_further_down(inputs):
    stack = make_stack("gru", D_INPUT, D_HIDDEN, n_layers=3, skip=2)
    low, middle, high = stack.layers
    assert [cell.d_input for cell in stack.layers] == [D_INPUT, D_HIDDEN, D_HIDDEN + D_INPUT]
    below = middle.unroll(low.unroll(inputs).outputs).outputs
    expected = high.unroll(torch.cat([below, inputs], dim=2)).outputs
    torch.testing.assert_close(stack.unroll(inputs).outputs, expected)


def test_dropout_falls_between_layers_in_training_only(inputs):
    stack = make_stack("gru", D_INPUT, D_HIDDEN, n_layers=2, dropout=0.5)
    seen = []
    stack.layers[1].register_forward_pre_hook(lambda *_: None)
    original = stack.layers[1].run

    def spy(x, state, mask):
        seen.append(x)
        return original(x, state, mask)

    stack.layers[1].run = spy
    below = stack.layers[0].unroll(inputs).outputs
    stack.unroll(inputs)
    dropped = seen[0] == 0
    assert 0.3 < dropped.float().mean() < 0.7
    torch.testing.assert_close(seen[0][~dropped], 2 * below[~dropped])
    stack.eval().unroll(inputs)
    torch.testing.assert_close(seen[1], below)


def test_stacks_whose_sizes_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="layer 1 of the stack gets 3 numbers a step, its cell"):
        StackedCell([GruCell(5, 3), GruCell(7, 3)])
    with pytest.raises(UsageError, match="layer 0 is residual but goes from 5 to 3"):
        StackedCell([GruCell(5, 3)], residual_from=0)
    with pytest.raises(UsageError, match="at least one cell"):
        StackedCell([])


def test_both_ways_agrees_with_torchs_bidirectional_module_and_packed_sequences(
    inputs, right_padded
):
    theirs = nn.LSTM(D_INPUT, D_HIDDEN, bidirectional=True, batch_first=True)
    ours = Bidirectional(LstmCell(D_INPUT, D_HIDDEN), LstmCell(D_INPUT, D_HIDDEN))
    for cell, weights in zip(
        (ours.forward_cell, ours.backward_cell), theirs.all_weights, strict=True
    ):
        for own, other in zip(cell.kernel.all_weights[0], weights, strict=True):
            own.data.copy_(other)
    torch.testing.assert_close(ours.unroll(inputs).outputs, theirs(inputs)[0])
    packed = nn.utils.rnn.pack_padded_sequence(
        inputs, right_padded.sum(1), batch_first=True, enforce_sorted=False
    )
    outputs, (hidden, carried) = theirs(packed)
    outputs, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
    found = ours.unroll(inputs, mask=right_padded)
    torch.testing.assert_close(found.outputs, outputs)
    ahead, back = found.state
    torch.testing.assert_close(torch.stack([ahead.hidden, back.hidden]), hidden)
    torch.testing.assert_close(torch.stack([ahead.cell, back.cell]), carried)


def test_reversing_turns_the_real_steps_round_and_leaves_the_padding(right_padded, holes):
    steps = torch.arange(1.0, 1 + BATCH * STEPS).view(BATCH, STEPS, 1)
    for mask in (right_padded, holes, torch.ones_like(holes)):
        turned = reverse(steps, mask)
        for row, real in enumerate(mask):
            assert torch.equal(turned[row, real], steps[row, real].flip(0))
            assert torch.equal(turned[row, ~real], steps[row, ~real])
        assert torch.equal(reverse(turned, mask), steps)
    assert is_right_padded(right_padded) and not is_right_padded(holes)


def test_a_stateful_cell_goes_on_where_it_stopped_and_cuts_the_gradient(inputs):
    cell = LstmCell(D_INPUT, D_HIDDEN)
    reader = Stateful(cell)
    x = inputs.clone().requires_grad_()
    pieces = [reader.unroll(x[:, :4]).outputs, reader.unroll(x[:, 4:]).outputs]
    torch.testing.assert_close(torch.cat(pieces, dim=1), cell.unroll(inputs).outputs)
    (grad,) = torch.autograd.grad(pieces[1].sum(), x)
    assert (grad[:, :4] == 0).all() and (grad[:, 4:] != 0).any()


def test_a_stateful_cell_forgets_the_rows_where_a_new_text_begins(inputs):
    cell = LstmCell(D_INPUT, D_HIDDEN)
    reader = Stateful(cell)
    reader.forget(torch.tensor([True, False, False]))  # nothing to forget yet
    reader.unroll(inputs)
    reader.forget(torch.tensor([False, True, False]))
    fresh, went_on = cell.unroll(inputs), cell.unroll(inputs, cell.unroll(inputs).state)
    again = reader.unroll(inputs).outputs
    torch.testing.assert_close(again[1], fresh.outputs[1])
    torch.testing.assert_close(again[[0, 2]], went_on.outputs[[0, 2]])
    reader.forget()
    torch.testing.assert_close(reader.unroll(inputs).outputs, fresh.outputs)


@pytest.mark.parametrize("name", cell_names())
def test_a_learned_start_begins_as_the_cells_own_and_gets_a_gradient(name, inputs):
    cell = make_cell(name, D_INPUT, 22).eval()
    learned = LearnedStart(cell).eval()
    torch.testing.assert_close(learned.unroll(inputs).outputs, cell.unroll(inputs).outputs)
    learned.unroll(inputs).outputs.sum().backward()
    assert all(first.grad is not None for first in learned.first)


def test_a_learned_start_is_a_separate_bias_for_the_first_step(inputs):
    learned = LearnedStart(ElmanCell(D_INPUT, D_HIDDEN))
    learned.first[0].data.normal_()
    u, w, b, _ = learned.cell.kernel.all_weights[0]
    first_bias = b + w @ learned.first[0]
    expected = torch.tanh(inputs[:, 0] @ u.T + first_bias)
    torch.testing.assert_close(learned.unroll(inputs).outputs[:, 0], expected)


def test_rows_of_a_state_are_chosen_and_replaced():
    state = LstmCell(2, 3).start(4)._replace(cell=torch.arange(12.0).view(4, 3))
    some = select_rows(state, torch.tensor([3, 1]))
    assert some.cell.tolist() == [[9, 10, 11], [3, 4, 5]]
    back = replace_rows(state, torch.tensor([0, 2]), some)
    assert back.cell[[0, 2]].tolist() == some.cell.tolist()
    assert torch.equal(back.cell[[1, 3]], state.cell[[1, 3]])
    assert type(back) is type(state)


def test_an_unknown_cell_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="no cell named 'ltsm'") as caught:
        make_cell("ltsm", 2, 3)
    assert "did you mean 'lstm'?" in caught.value.hint and "clockwork" in caught.value.hint


def test_a_cell_of_ones_own_is_known_by_name(monkeypatch):
    monkeypatch.setattr(making, "_CELLS", dict(making._CELLS))
    register_cell("mine", lambda d_input, d_hidden: ElmanCell(d_input, 2 * d_hidden))
    assert make_cell("mine", 2, 3).d_hidden == 6 and "mine" in cell_names()
