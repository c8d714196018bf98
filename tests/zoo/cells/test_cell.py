"""Every cell keeps the laws of a cell: steps make a sequence, and padding changes nothing."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.cells.cell import Cell, detach, select_rows, tensors_of
from saccade.zoo.cells.stacks import cell_names, make_cell

BATCH, STEPS, D_INPUT, D_HIDDEN = 3, 7, 5, 22
KERNELS = ("elman", "elman-relu", "irnn", "lstm", "gru", "linear-context")


@pytest.fixture(params=cell_names())
def cell(request):
    cell = make_cell(request.param, D_INPUT, D_HIDDEN)
    # Weights that are not the tidy ones a cell begins with.
    for parameter in cell.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    if request.param == "batch-norm-lstm":
        for _ in range(3):
            cell.unroll(torch.randn(11, STEPS, D_INPUT))  # it needs statistics to be judged by
    return cell.eval()


def by_steps(cell, inputs, state=None):
    state = cell.start(len(inputs)) if state is None else state
    outputs = []
    for t in range(inputs.shape[1]):
        output, state = cell.step(inputs[:, t], state)
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


def assert_same_state(found, expected):
    for one, other in zip(tensors_of(found), tensors_of(expected), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_sequence_is_its_steps_one_after_the_other(cell, inputs):
    outputs, state = by_steps(cell, inputs)
    unrolled = cell.unroll(inputs)
    assert unrolled.outputs.shape == (BATCH, STEPS, D_HIDDEN)
    torch.testing.assert_close(unrolled.outputs, outputs, atol=1e-5, rtol=1e-5)
    assert_same_state(unrolled.state, state)


def test_a_sequence_in_two_pieces_is_the_whole(cell, inputs):
    whole = cell.unroll(inputs)
    first = cell.unroll(inputs[:, :4])
    second = cell.unroll(inputs[:, 4:], first.state)
    joined = torch.cat([first.outputs, second.outputs], dim=1)
    torch.testing.assert_close(joined, whole.outputs, atol=1e-5, rtol=1e-5)
    assert_same_state(second.state, whole.state)


@pytest.mark.parametrize("name", ["right_padded", "holes"])
def test_a_padded_row_is_read_as_if_it_were_alone_and_without_padding(cell, inputs, name, request):
    mask = request.getfixturevalue(name)
    garbage = inputs.masked_fill(~mask[:, :, None], torch.inf)  # must not leak
    padded = cell.unroll(garbage, mask=mask)
    assert (padded.outputs[~mask] == 0).all()
    for row, real in enumerate(mask):
        alone = cell.unroll(inputs[row : row + 1, real])
        torch.testing.assert_close(
            padded.outputs[row, real], alone.outputs[0], atol=1e-5, rtol=1e-5
        )
        assert_same_state(select_rows(padded.state, torch.tensor([row])), alone.state)


def test_a_row_that_is_all_padding_keeps_its_state(cell, inputs, right_padded):
    mask = right_padded.clone()
    mask[1] = False
    before = cell.unroll(inputs).state
    after = cell.unroll(inputs, before, mask=mask).state
    row = torch.tensor([1])
    assert_same_state(select_rows(after, row), select_rows(before, row))


def test_steps_that_are_padding_in_every_row_change_nothing(cell, inputs, right_padded):
    longer = torch.cat([inputs, torch.full((BATCH, 2, D_INPUT), torch.inf)], dim=1)
    mask = torch.cat([right_padded, torch.zeros(BATCH, 2, dtype=torch.bool)], dim=1)
    found, expected = cell.unroll(longer, mask=mask), cell.unroll(inputs, mask=right_padded)
    torch.testing.assert_close(found.outputs[:, :STEPS], expected.outputs)
    assert (found.outputs[:, STEPS:] == 0).all()
    assert_same_state(found.state, expected.state)
    in_front = cell.unroll(longer.flip(1), mask=mask.flip(1))
    assert in_front.outputs.isfinite().all()


@pytest.mark.parametrize("name", ["right_padded", "holes"])
def test_gradients_through_padding_are_those_of_the_plain_loop(cell, inputs, name, request):
    mask = request.getfixturevalue(name)
    signal = torch.randn(BATCH, STEPS, D_HIDDEN)

    def gradients(way):
        cell.zero_grad()
        x = inputs.clone().requires_grad_()
        outputs, state = way(x, cell.start(BATCH), mask)
        floats = [part for part in tensors_of(state) if part.is_floating_point()]
        ((outputs * signal).sum() + sum(part.square().sum() for part in floats)).backward()
        learned = [p for p in cell.parameters() if p.requires_grad]
        return [x.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in learned)]

    for found, expected in zip(gradients(cell.run), gradients(cell.loop), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        assert torch.isfinite(found).all()


@pytest.mark.parametrize("name", KERNELS)
def test_torchs_kernel_and_the_loop_agree_in_value_and_gradient(name, inputs):
    cell = make_cell(name, D_INPUT, D_HIDDEN)
    results = []
    for way in (cell.run, cell.loop):
        cell.zero_grad()
        outputs, state = way(inputs, cell.start(BATCH), None)
        (outputs.square().sum() + sum(part.sum() for part in tensors_of(state))).backward()
        grads = [p.grad for p in cell.parameters() if p.requires_grad]
        results.append([outputs, *tensors_of(state), *grads])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_every_weight_gets_a_gradient(cell, inputs):
    state = cell.unroll(inputs).state  # so that weights of the state are not idle
    cell.unroll(inputs, detach(state)).outputs.square().sum().backward()
    for name, parameter in cell.named_parameters():
        if parameter.requires_grad and name != "first":  # the learned start was not used
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_a_cell_is_the_same_in_double_precision(cell, inputs):
    expected = cell.unroll(inputs).outputs
    found = cell.double().unroll(inputs.double()).outputs
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=1e-4)


def test_an_empty_sequence_and_an_empty_cell_are_refused():
    with pytest.raises(UsageError, match=r"at least one step, got inputs of shape \(2, 0, 5\)"):
        make_cell("gru", 5, 3).unroll(torch.zeros(2, 0, 5))
    with pytest.raises(UsageError, match="got d_input 5 and d_hidden 0"):
        make_cell("gru", 5, 0)


def test_a_mask_that_is_all_true_is_no_mask(cell, inputs):
    mask = torch.ones(BATCH, STEPS, dtype=torch.bool)
    assert torch.equal(cell.unroll(inputs, mask=mask).outputs, cell.unroll(inputs).outputs)


def test_the_loop_projects_all_steps_at_once():
    class Counting(Cell):
        calls = 0

        def __init__(self):
            super().__init__(2, 2)
            self.weight = torch.nn.Parameter(torch.ones(()))

        def start(self, n):
            return self.zeros(n, 2)

        def project(self, inputs):
            self.calls += 1
            return inputs

        def advance(self, projected, state):
            from saccade.zoo.cells.cell import CellOutput

            return CellOutput(projected + state, projected + state)

    cell = Counting()
    outputs = cell.unroll(torch.ones(3, 11, 2)).outputs
    assert cell.calls == 1
    assert outputs[0, :, 0].tolist() == list(range(1, 12))
