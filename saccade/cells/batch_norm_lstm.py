"""The LSTM with recurrent batch normalisation."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.cells.cell import Cell, CellOutput

MOMENTUM = 0.1
EPSILON = 1e-5


class BatchNormLstmState(NamedTuple):
    """An LSTM's state, and which step comes next: each has statistics of its own."""

    hidden: Float[Tensor, "batch d_hidden"]
    cell: Float[Tensor, "batch d_hidden"]
    time: Int[Tensor, " batch"]


class StepNorm(nn.Module):
    """Batch normalisation with statistics for each time step, up to a last one.

    Cooijmans et al., 2017 (https://arxiv.org/abs/1603.09025), section 3: the gains are shared by
    all steps, the statistics are not, because the first steps differ much from the later ones.
    Steps beyond the last that was seen in training use the statistics of that one.

    Args:
        gain: Where the gains begin. The paper's point: at 1 the tanh saturates and gradients
            vanish; 0.1 keeps them.
    """

    mean: Tensor
    variance: Tensor
    n_seen: Tensor

    def __init__(self, d: int, *, n_steps: int, gain: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((d,), gain))
        self.register_buffer("mean", torch.zeros(n_steps, d))
        self.register_buffer("variance", torch.ones(n_steps, d))
        self.register_buffer("n_seen", torch.zeros((), dtype=torch.long))

    def forward(
        self, values: Float[Tensor, "batch d"], time: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch d"]:
        """Normalise by the batch in training (all rows at one step), else by what was gathered."""
        # A single row, the last of a padded batch, has no spread to go by.
        if self.training and len(values) > 1:
            place = min(int(time.max()), len(self.mean) - 1)
            self.n_seen.clamp_(min=place + 1)
            mean, variance = self.mean[place], self.variance[place]
            return functional.batch_norm(
                values, mean, variance, self.gain, None, True, MOMENTUM, EPSILON
            )
        row = time.minimum((self.n_seen - 1).clamp_min(0))
        scale = (self.variance[row] + EPSILON).rsqrt() * self.gain
        return (values - self.mean[row]) * scale


class BatchNormLstmCell(Cell[BatchNormLstmState]):
    """An LSTM whose sums are brought to mean 0 and a small variance over the rows of a batch.

    Cooijmans et al., 2017 (https://arxiv.org/abs/1603.09025), equations 6 to 8::

        (f, i, o, g) = BN(W_h h_(t-1)) + BN(W_x x_t) + b
        c_t = sigmoid(f) * c_(t-1) + sigmoid(i) * tanh(g)
        h_t = sigmoid(o) * tanh(BN(c_t))

    Nothing is normalised on the way from ``c_(t-1)`` to ``c_t``, so that the gradient can pass. As
    in the paper the two inner norms have no bias (b is there) and the matrices begin orthogonal.
    The forget gate's bias begins at one, as in `LstmCell`.

    Args:
        n_steps: How many steps have statistics of their own; later ones share the last (T_max).
        gain: Where the gains begin.
    """

    def __init__(
        self, d_input: int, d_hidden: int, *, n_steps: int = 200, gain: float = 0.1
    ) -> None:
        super().__init__(d_input, d_hidden)
        n = 4 * d_hidden
        self.input_proj = nn.Linear(d_input, n, bias=False)
        self.state_proj = nn.Linear(d_hidden, n, bias=False)
        nn.init.orthogonal_(self.input_proj.weight)
        nn.init.orthogonal_(self.state_proj.weight)
        self.bias = nn.Parameter(torch.zeros(n))
        self.bias.data[:d_hidden] = 1.0
        self.input_norm = StepNorm(n, n_steps=n_steps, gain=gain)
        self.state_norm = StepNorm(n, n_steps=n_steps, gain=gain)
        self.cell_norm = StepNorm(d_hidden, n_steps=n_steps, gain=gain)
        self.cell_bias = nn.Parameter(torch.zeros(d_hidden))

    def start(self, n: int) -> BatchNormLstmState:
        """Zeros."""
        time = torch.zeros(n, dtype=torch.long, device=self.bias.device)
        zeros = self.zeros(n, self.d_hidden)
        return BatchNormLstmState(zeros, zeros, time)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_gates"]:
        """``W_x x``; it is normalised in its step, where the time is known."""
        return self.input_proj(inputs)

    def advance(
        self, projected: Float[Tensor, "batch d_gates"], state: BatchNormLstmState
    ) -> CellOutput:
        """One step of the equations above, the gates in the order f, i, o, g."""
        time = state.time
        recurrent = self.state_norm(self.state_proj(state.hidden), time)
        gates = recurrent + self.input_norm(projected, time) + self.bias
        f, i, o = gates[:, : 3 * self.d_hidden].sigmoid().chunk(3, dim=1)
        cell = f * state.cell + i * gates[:, 3 * self.d_hidden :].tanh()
        hidden = o * (self.cell_norm(cell, time) + self.cell_bias).tanh()
        return CellOutput(hidden, BatchNormLstmState(hidden, cell, time + 1))
