"""A cell by itself."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.cells.stacks import cell_names, make_cell
from saccade.zoo.models.sequence_reader import SequenceReader

BATCH, POS, D_INPUT, D_HIDDEN, D_OUTPUT = 3, 7, 5, 12, 2


@pytest.mark.parametrize("cell", cell_names())
def test_what_is_said_is_a_linear_map_of_the_state_at_that_step(cell):
    torch.manual_seed(0)
    reader = SequenceReader(d_input=D_INPUT, d_hidden=D_HIDDEN, d_output=D_OUTPUT, cell=cell).eval()
    inputs = torch.randn(BATCH, POS, D_INPUT)
    said = reader(inputs)
    state = reader.cell.start(BATCH)
    for place, x in enumerate(inputs.unbind(1)):
        output, state = reader.cell.step(x, state)
        wanted = output @ reader.output.weight.T + reader.output.bias
        torch.testing.assert_close(said[:, place], wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(reader.at_end(inputs), said[:, -1])


def test_a_cell_that_keeps_for_long_begins_with_open_gates():
    torch.manual_seed(0)
    plain, keeping = (make_cell("lstm", 2, D_HIDDEN, longest=n) for n in (None, 150))

    def kept(cell):
        state = cell.start(1)._replace(cell=torch.ones(1, D_HIDDEN))
        last = cell.unroll(torch.zeros(1, 20, 2), state).state.cell
        return last.mean().item()

    assert kept(keeping) > 0.5 > kept(plain)
    with pytest.raises(UsageError, match="has no setting longest"):
        make_cell("elman", 2, D_HIDDEN, longest=150)


def test_influence_is_where_the_answer_comes_from():
    reader = SequenceReader(d_input=1, d_hidden=2, d_output=1, cell="irnn")
    with torch.no_grad():  # two units that add up what they read: the answer is the sum
        reader.cell.kernel.weight_ih_l0.fill_(1.0)
        reader.output.weight.fill_(0.5)
        reader.output.bias.zero_()
    numbers = torch.tensor([[1.0], [0.0], [3.0]])
    assert reader.at_end(numbers[None]).item() == pytest.approx(4.0)
    torch.testing.assert_close(reader.influence_on_end(numbers), torch.tensor([[0.25, 0.0, 0.75]]))
