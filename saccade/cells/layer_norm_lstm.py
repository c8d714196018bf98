"""The LSTM with layer normalisation."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.cells.cell import Cell, CellOutput
from saccade.cells.lstm import LstmState


class LayerNormLstmCell(Cell[LstmState]):
    """An LSTM whose sums are brought to mean 0 and variance 1 over the units of one layer.

    Ba, Kiros and Hinton, 2016 (https://arxiv.org/abs/1607.06450), supplement, equations 20 to 22::

        (f, i, o, g) = LN(W_h h_(t-1)) + LN(W_x x_t) + b
        c_t = sigmoid(f) * c_(t-1) + sigmoid(i) * tanh(g)
        h_t = sigmoid(o) * tanh(LN(c_t))

    with one gain a unit. The paper also gives the two inner norms a bias each; they only ever occur
    as a sum with b. One norm runs over all four gates together, as the equation has it. The forget
    gate's bias begins at one, as in `LstmCell`.
    """

    def __init__(self, d_input: int, d_hidden: int) -> None:
        super().__init__(d_input, d_hidden)
        n = 4 * d_hidden
        self.input_proj = nn.Linear(d_input, n, bias=False)
        self.state_proj = nn.Linear(d_hidden, n, bias=False)
        self.input_gain = nn.Parameter(torch.ones(n))
        self.state_gain = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n))
        self.bias.data[:d_hidden] = 1.0
        self.cell_norm = nn.LayerNorm(d_hidden)

    def start(self, n: int) -> LstmState:
        """Zeros."""
        return LstmState(self.zeros(n, self.d_hidden), self.zeros(n, self.d_hidden))

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_gates"]:
        """``LN(W_x x) + b``, the gates in the order f, i, o, g."""
        return functional.layer_norm(
            self.input_proj(inputs), self.bias.shape, self.input_gain, self.bias
        )

    def advance(self, projected: Float[Tensor, "batch d_gates"], state: LstmState) -> CellOutput:
        """One step of the equations above."""
        recurrent = self.state_proj(state.hidden)
        gates = projected + functional.layer_norm(recurrent, self.bias.shape, self.state_gain)
        f, i, o = gates[:, : 3 * self.d_hidden].sigmoid().chunk(3, dim=1)
        cell = f * state.cell + i * gates[:, 3 * self.d_hidden :].tanh()
        hidden = o * self.cell_norm(cell).tanh()
        return CellOutput(hidden, LstmState(hidden, cell))
