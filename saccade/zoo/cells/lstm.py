"""LSTM cells: plain, with layer normalisation, with recurrent batch normalisation."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.cell import (
    Cell,
    CellOutput,
    Unrolled,
    blank_padding,
    is_right_padded,
    last_step,
    weights_of,
)

# Initialisation of gates for long time dependencies.


def keeping_bias(
    d_hidden: int, longest: int, generator: torch.Generator | None = None
) -> Float[Tensor, " d_hidden"]:
    """Biases with which a sigmoid gate keeps a value for 1 to ``longest`` steps, unit by unit.

    Tallec and Ollivier, 2018 (https://arxiv.org/abs/1804.11188), "chrono" initialisation:
    ``log(U(1, longest - 1))``. A gate with bias b keeps ``sigmoid(b) = 1 - 1 / (1 + e^b)`` per
    step, so a value lasts about ``1 + e^b`` steps.
    """
    steps = torch.empty(d_hidden).uniform_(1, max(longest - 1, 1), generator=generator)
    return steps.log()


# A sigmoid of this is exactly 1, of its negative exactly 0, in every floating-point type.
SHUT = 1e4


class LstmState(NamedTuple):
    """Hidden state and cell state of an LSTM."""

    hidden: Float[Tensor, "batch d_hidden"]
    cell: Float[Tensor, "batch d_hidden"]


class LstmCell(Cell[LstmState]):
    """``c_t = f * c_(t-1) + i * g``, ``h_t = o * tanh(c_t)``.

    Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000: ``i, f, o`` are
    sigmoids and ``g`` a tanh of ``W_x x_t + W_h h_(t-1) + b``. With f = 1 and i = o = 0 the value
    is kept unchanged, and so is its gradient. The forget gate's bias is initialised to one
    (Jozefowicz et al., 2015).

    A sequence runs through torch's own LSTM kernel, which computes the same.

    Args:
        longest: Longest time dependency in steps. If given, the forget gates are initialised to
            keep values for up to that long, and the input gates are closed accordingly
            (`keeping_bias`).

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
        """By torch's kernel if padding is at the end."""
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
        """The kernel with one extra input, which is 1 at padding and closes the gates there.

        So the cell state at the end is that of the last real step. torch's packed sequences do not
        use the fast kernel: 1.4 times (64 x 30 steps, 256 units) to 8 times slower (50 x 150 steps,
        100 units) on a CPU.
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


# The LSTM with layer normalisation.


class LayerNormLstmCell(Cell[LstmState]):
    """An LSTM whose pre-activations are normalised over the units of one layer.

    Ba, Kiros and Hinton, 2016 (https://arxiv.org/abs/1607.06450), supplement, equations 20 to 22::

        (f, i, o, g) = LN(W_h h_(t-1)) + LN(W_x x_t) + b
        c_t = sigmoid(f) * c_(t-1) + sigmoid(i) * tanh(g)
        h_t = sigmoid(o) * tanh(LN(c_t))

    with one gain per unit. The paper also gives the two inner norms a bias each; these only occur
    as a sum with b. One norm runs over all four gates together, as in the equation. The forget
    gate's bias is initialised to one, as in `LstmCell`.
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


# The LSTM with recurrent batch normalisation.

MOMENTUM = 0.1
EPSILON = 1e-5


class BatchNormLstmState(NamedTuple):
    """An LSTM's state and the index of the next step, which has its own statistics."""

    hidden: Float[Tensor, "batch d_hidden"]
    cell: Float[Tensor, "batch d_hidden"]
    time: Int[Tensor, " batch"]


class StepNorm(nn.Module):
    """Batch normalisation with separate statistics for each time step, up to a maximum.

    Cooijmans et al., 2017 (https://arxiv.org/abs/1603.09025), section 3: the gains are shared by
    all steps, the statistics are not, because the first steps differ much from later ones. Steps
    beyond the last one in training use its statistics.

    Args:
        gain: Initial value of the gains. The paper's point: with 1 the tanh saturates and gradients
            vanish; with 0.1 they do not.
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
        """Normalise by batch statistics in training (all rows of a step), else by running ones."""
        # A single row, the last of a padded batch, has no variance.
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
    """An LSTM whose pre-activations are normalised over the rows of a batch.

    Cooijmans et al., 2017 (https://arxiv.org/abs/1603.09025), equations 6 to 8::

        (f, i, o, g) = BN(W_h h_(t-1)) + BN(W_x x_t) + b
        c_t = sigmoid(f) * c_(t-1) + sigmoid(i) * tanh(g)
        h_t = sigmoid(o) * tanh(BN(c_t))

    The path from ``c_(t-1)`` to ``c_t`` is not normalised, so that the gradient can pass. As in the
    paper the two inner norms have no bias (there is b) and the matrices are initialised orthogonal.
    The forget gate's bias is initialised to one, as in `LstmCell`.

    Args:
        n_steps: Number of steps with separate statistics; later ones share the last (T_max).
        gain: Initial value of the gains.
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
        """``W_x x``; it is normalised in `advance`, where the step index is known."""
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


# Dropout with one mask for all steps of a sequence.


class LockedDropout(nn.Module):
    """Dropout of the same features at all steps of a row.

    Gal and Ghahramani, 2016 (https://arxiv.org/abs/1512.05287), section 4, between layers; the
    recurrent connections are not dropped, since torch's kernels do not support it. As usual, the
    other features are scaled up, and nothing is dropped in eval mode.

    >>> dropped = LockedDropout(0.5)(torch.ones(2, 3, 100))
    >>> torch.equal(dropped[:, 0], dropped[:, 1]), sorted(set(dropped.flatten().tolist()))
    (True, [0.0, 2.0])
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, steps: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        """Drop features of each row."""
        if not self.training or not self.rate:
            return steps
        kept = torch.rand(len(steps), 1, steps.shape[2], device=steps.device) >= self.rate
        return steps * (kept.to(steps) / (1 - self.rate))

    def extra_repr(self) -> str:
        """The dropout rate."""
        return f"rate={self.rate}"
