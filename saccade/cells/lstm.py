"""The LSTM cell: a value that is carried along, and gates that say what enters, stays and shows."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.cells.cell import Cell, CellOutput, Unrolled
from saccade.cells.kernel import weights_of
from saccade.cells.long_range import keeping_bias
from saccade.cells.padding import blank_padding, is_right_padded, last_step

# A sigmoid of this is exactly 1, of its negative exactly 0, in every floating-point type.
SHUT = 1e4


class LstmState(NamedTuple):
    """What an LSTM shows, and what it carries."""

    hidden: Float[Tensor, "batch d_hidden"]
    cell: Float[Tensor, "batch d_hidden"]


class LstmCell(Cell[LstmState]):
    """``c_t = f * c_(t-1) + i * g``, ``h_t = o * tanh(c_t)``.

    Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000: ``i, f, o`` are
    sigmoids and ``g`` a tanh of ``W_x x_t + W_h h_(t-1) + b``. With f = 1 and i = o = 0 the value
    is carried on unchanged, and so is its gradient. The forget gate's bias begins at one, so that a
    new cell remembers (Jozefowicz et al., 2015).

    A sequence runs through torch's own LSTM kernel, which computes the same.

    Args:
        longest: How many steps a value may have to be kept. Given, the forget gates begin open for
            up to that long, and the input gates as far shut (`keeping_bias`).

    >>> output, state = LstmCell(3, 5).step(torch.zeros(2, 3), LstmCell(3, 5).start(2))
    >>> output.shape, state.cell.shape
    (torch.Size([2, 5]), torch.Size([2, 5]))
    """

    def __init__(self, d_input: int, d_hidden: int, *, longest: int | None = None) -> None:
        super().__init__(d_input, d_hidden)
        self.kernel = nn.LSTM(d_input, d_hidden, batch_first=True)
        # torch has two biases that only ever occur as their sum: one of them learns.
        weights = weights_of(self.kernel)
        nn.init.zeros_(weights.state_bias).requires_grad_(False)
        keeping = torch.ones(d_hidden) if longest is None else keeping_bias(d_hidden, longest)
        entering = torch.zeros(d_hidden) if longest is None else -keeping
        rest = torch.zeros(2 * d_hidden)
        weights.input_bias.data.copy_(torch.cat([entering, keeping, rest]))

    def start(self, n: int) -> LstmState:
        """Zeros."""
        return LstmState(self.zeros(n, self.d_hidden), self.zeros(n, self.d_hidden))

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_gates"]:
        """``W_x x + b`` for all four gates, in torch's order: i, f, g, o."""
        weights = weights_of(self.kernel)
        bias = weights.input_bias + weights.state_bias
        return functional.linear(inputs, weights.of_input, bias)

    def advance(self, projected: Float[Tensor, "batch d_gates"], state: LstmState) -> CellOutput:
        """One step of the equations above."""
        gates = torch.addmm(projected, state.hidden, weights_of(self.kernel).of_state.T)
        i, f, g, o = gates.chunk(4, dim=1)
        cell = f.sigmoid() * state.cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        return CellOutput(hidden, LstmState(hidden, cell))

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: LstmState,
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """By torch's kernel, unless the padding is not at the end."""
        if mask is None:
            outputs, (hidden, cell) = self.kernel(inputs, (state.hidden[None], state.cell[None]))
            return Unrolled(outputs, LstmState(hidden[0], cell[0]))
        if not is_right_padded(mask):
            return self.loop(inputs, state, mask)
        return self._run_padded(inputs, state, mask)

    def _run_padded(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: LstmState,
        mask: Bool[Tensor, "batch pos"],
    ) -> Unrolled:
        """The kernel with one input more, which is 1 at padding and shuts the gates there.

        So the carried value arrives at the end as it was at the last real step. torch's way, packed
        sequences, leaves the fast kernel: 1.4 times (64 x 30 steps, 256 units) to 8 times slower
        (50 x 150 steps, 100 units) on a CPU.
        """
        steps = torch.cat([blank_padding(inputs, mask), (~mask)[:, :, None].to(inputs)], dim=2)
        n = self.d_hidden
        shut = torch.cat([torch.full((n, 1), sign * SHUT) for sign in (-1, 1, 0, 0)]).to(inputs)
        own = weights_of(self.kernel)
        weights = own._replace(of_input=torch.cat([own.of_input, shut], dim=1))
        outputs, _, cell = torch.lstm(
            steps,
            [state.hidden[None], state.cell[None]],
            list(weights),
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        hidden = last_step(outputs, mask, state.hidden)
        return Unrolled(blank_padding(outputs, mask), LstmState(hidden, cell[0]))
