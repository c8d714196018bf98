"""The penalty is what its formula says, and stepping down it makes gradients keep their length."""

import itertools

import pytest
import torch

from saccade.zoo.cells.cell import record, tensors_of
from saccade.zoo.cells.lectures import jacobian_penalty
from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.cells.simple import ElmanCell
from saccade.zoo.cells.stacks import make_cell
from saccade.zoo.cells.unitary import UnitaryCell

BATCH, STEPS, D_INPUT, D_HIDDEN = 3, 7, 5, 11


def last_output_loss(recorded):
    return recorded.outputs[:, -1].square().sum()


def test_recording_a_cell_is_unrolling_it_with_all_states(inputs):
    cell = LstmCell(D_INPUT, D_HIDDEN)
    recorded, unrolled = record(cell, inputs), cell.unroll(inputs)
    torch.testing.assert_close(recorded.outputs, unrolled.outputs)
    torch.testing.assert_close(recorded.states[-1], unrolled.state)
    assert len(recorded.states) == STEPS + 1


def test_ratios_and_penalty_agree_with_jacobians_one_by_one(inputs):
    cell = ElmanCell(D_INPUT, D_HIDDEN)
    recorded = record(cell, inputs)
    loss = recorded.outputs.square().sum()  # every step adds to the error
    found = jacobian_penalty(cell, inputs, recorded, loss=loss)
    signals = torch.autograd.grad(loss, recorded.states[1:], retain_graph=True)
    expected = torch.zeros(BATCH, STEPS)
    for row in range(BATCH):
        for k in range(STEPS):
            jacobian = torch.autograd.functional.jacobian(
                lambda s, row=row, k=k: cell.step(inputs[row : row + 1, k], s[None]).state[0],
                recorded.states[k][row].detach(),
            )
            signal = signals[k][row]
            expected[row, k] = (signal @ jacobian).norm() / signal.norm()
    torch.testing.assert_close(found.ratios, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.penalty.detach(), (expected - 1).square().sum(1).mean())


@pytest.mark.parametrize("name", ["elman", "lstm", "clockwork", "layer-norm-lstm"])
def test_with_an_error_at_the_end_alone_a_ratio_is_that_of_two_signals(name, inputs):
    """Then dE/ds_k is dE/ds_(k+1) times the Jacobian."""
    cell = make_cell(name, D_INPUT, D_HIDDEN)
    recorded = record(cell, inputs)
    loss = last_output_loss(recorded)
    found = jacobian_penalty(cell, inputs, recorded, loss=loss)
    lengths = []
    for state in recorded.states[1:]:
        parts = [part for part in tensors_of(state) if part.is_floating_point()]
        grads = torch.autograd.grad(loss, parts, retain_graph=True, materialize_grads=True)
        lengths.append(torch.cat(grads, dim=1).norm(dim=1))
    expected = torch.stack([a / b for a, b in itertools.pairwise(lengths)], dim=1)
    torch.testing.assert_close(found.ratios[:, 1:], expected, atol=1e-5, rtol=1e-4)


def test_a_cell_that_keeps_lengths_pays_nothing():
    cell = UnitaryCell(D_INPUT, 2 * D_HIDDEN)
    inputs = torch.randn(BATCH, STEPS, D_INPUT)
    recorded = record(cell, inputs)
    found = jacobian_penalty(cell, inputs, recorded, loss=last_output_loss(recorded))
    assert found.penalty < 1e-3
    torch.testing.assert_close(found.ratios, torch.ones(BATCH, STEPS), atol=1e-2, rtol=0)


def test_a_vanished_signal_counts_nothing_and_gives_no_nan():
    cell = ElmanCell(D_INPUT, D_HIDDEN)
    inputs = torch.randn(BATCH, STEPS, D_INPUT)
    recorded = record(cell, inputs)
    found = jacobian_penalty(cell, inputs, recorded, loss=recorded.outputs[:, 2].square().sum())
    assert found.ratios[:, 3:].isnan().all() and found.ratios[:, :3].isfinite().all()
    found.penalty.backward()
    assert all(p.grad.isfinite().all() for p in cell.parameters() if p.grad is not None)


def test_descending_the_penalty_brings_the_ratios_to_one(inputs):
    cell = ElmanCell(D_INPUT, D_HIDDEN)
    optimiser = torch.optim.Adam(cell.parameters(), lr=0.02)
    penalties = []
    for _ in range(60):
        recorded = record(cell, inputs)
        found = jacobian_penalty(cell, inputs, recorded, loss=last_output_loss(recorded))
        optimiser.zero_grad()
        found.penalty.backward()
        optimiser.step()
        penalties.append(found.penalty.item())
    assert penalties[-1] < 0.1 * penalties[0]
