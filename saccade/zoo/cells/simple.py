"""Simple recurrent cells: Elman, Jordan, IRNN, linear context, SCRN, clockwork."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.cells.cell import Cell, CellOutput, Unrolled, blank_padding, run_kernel, weights_of

# The Elman cell: the hidden units read their own previous values.


class ElmanCell(Cell[Tensor]):
    """``s_t = f(U x_t + W s_(t-1) + b)``: the plain recurrent network.

    Elman, "Finding structure in time", Cognitive Science 14, 1990: the context units hold a copy of
    the hidden units, and are read like an input. Elman used the logistic function; tanh is centred
    at zero, and relu gives the IRNN (`irnn_cell`). The linear self-loop that is sometimes drawn as
    an Elman network is `LinearContextCell`.

    A sequence runs through torch's own RNN kernel, which computes the same.

    >>> cell = ElmanCell(3, 5)
    >>> cell.unroll(torch.zeros(2, 7, 3)).outputs.shape
    torch.Size([2, 7, 5])
    """

    def __init__(
        self, d_input: int, d_hidden: int, *, activation: Literal["tanh", "relu"] = "tanh"
    ) -> None:
        super().__init__(d_input, d_hidden)
        self.activation = activation
        self.kernel = nn.RNN(d_input, d_hidden, nonlinearity=activation, batch_first=True)
        # torch has two biases that only ever occur as their sum: one of them learns.
        weights = weights_of(self.kernel)
        nn.init.zeros_(weights.input_bias)
        nn.init.zeros_(weights.state_bias).requires_grad_(False)

    def start(self, n: int) -> Float[Tensor, "batch d_hidden"]:
        """Zeros."""
        return self.zeros(n, self.d_hidden)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_hidden"]:
        """``U x + b``."""
        weights = weights_of(self.kernel)
        bias = weights.input_bias + weights.state_bias
        return functional.linear(inputs, weights.of_input, bias)

    def advance(
        self, projected: Float[Tensor, "batch d_hidden"], state: Float[Tensor, "batch d_hidden"]
    ) -> CellOutput:
        """``f(projected + W s)``."""
        total = torch.addmm(projected, state, weights_of(self.kernel).of_state.T)
        hidden = total.tanh() if self.activation == "tanh" else total.relu()
        return CellOutput(hidden, hidden)

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: Float[Tensor, "batch d_hidden"],
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """By torch's kernel if padding is at the end."""
        return run_kernel(self, self.kernel, inputs, state=state, mask=mask)


# The Jordan cell: the hidden units read the network's previous output.


class JordanCell(Cell[Tensor]):
    """``s_t = f(U x_t + W c_t + b)``, ``y_t = f(V s_t + c)``, ``c_(t+1) = decay c_t + y_t``.

    Jordan, "Serial order: a parallel distributed processing approach", 1986: the feedback is the
    output, not the hidden units, so everything the network remembers has to pass through its
    output. The context units may keep a share (``decay``) of their previous values, as in his
    figure. His units were logistic; ours are tanh, centred at zero.

    The output has ``d_hidden`` units, and so has the hidden layer.
    """

    def __init__(self, d_input: int, d_hidden: int, *, decay: float = 0.0) -> None:
        super().__init__(d_input, d_hidden)
        if not 0 <= decay < 1:
            raise UsageError(
                f"the decay of a Jordan cell is at least 0 and below 1, got {decay}",
                hint="0 keeps only the last output",
            )
        self.decay = decay
        self.input_proj = nn.Linear(d_input, d_hidden)
        self.context_proj = nn.Linear(d_hidden, d_hidden, bias=False)
        self.output_proj = nn.Linear(d_hidden, d_hidden)

    def start(self, n: int) -> Float[Tensor, "batch d_hidden"]:
        """Zeros."""
        return self.zeros(n, self.d_hidden)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_hidden"]:
        """``U x + b``."""
        return self.input_proj(inputs)

    def advance(
        self, projected: Float[Tensor, "batch d_hidden"], state: Float[Tensor, "batch d_hidden"]
    ) -> CellOutput:
        """The output, and the context that the next step reads."""
        hidden = torch.addmm(projected, state, self.context_proj.weight.T).tanh()
        output = self.output_proj(hidden).tanh()
        context = torch.add(output, state, alpha=self.decay) if self.decay else output
        return CellOutput(output, context)


# The IRNN: ReLU units with recurrent weights initialised to the identity.

# "sampled from a Gaussian distribution with mean of zero and standard deviation of 0.001":
# section 4 of the paper.
INPUT_SCALE = 0.001


def irnn_cell(d_input: int, d_hidden: int, *, scale: float = 1.0) -> ElmanCell:
    """An Elman cell with relu that initially copies its state.

    Le, Jaitly and Hinton, 2015 (https://arxiv.org/abs/1504.00941), section 2: with ``W = scale *
    I`` and ``b = 0`` the state is unchanged except that inputs add to it, and a gradient keeps its
    norm over any distance. The paper uses a ``scale`` below one (0.01) where long-range
    dependencies are not needed.

    >>> irnn_cell(2, 3).kernel.weight_hh_l0.tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    cell = ElmanCell(d_input, d_hidden, activation="relu")
    weights = weights_of(cell.kernel)
    nn.init.normal_(weights.of_input, std=INPUT_SCALE)
    nn.init.eye_(weights.of_state).data.mul_(scale)
    return cell


# A linear context: a self-loop with weight one.


class LinearContextCell(Cell[Tensor]):
    """``c_t = c_(t-1) + U x_t``: nothing is forgotten, and no gradient vanishes or explodes.

    Often drawn as Elman's network ("no weights from the last context: they are fixed to one"); his
    own copies the hidden units (`ElmanCell`). Without a nonlinearity between the steps the error
    flow is constant by definition; what is missing is a gate that selects what to add. No bias: it
    would count the steps.

    A whole sequence is one cumulative sum.
    """

    def __init__(self, d_input: int, d_hidden: int) -> None:
        super().__init__(d_input, d_hidden)
        self.input_proj = nn.Linear(d_input, d_hidden, bias=False)

    def start(self, n: int) -> Float[Tensor, "batch d_hidden"]:
        """Zeros."""
        return self.zeros(n, self.d_hidden)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_hidden"]:
        """``U x``."""
        return functional.linear(inputs, self.input_proj.weight)

    def advance(
        self, projected: Float[Tensor, "batch d_hidden"], state: Float[Tensor, "batch d_hidden"]
    ) -> CellOutput:
        """``c + projected``."""
        context = state + projected
        return CellOutput(context, context)

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: Float[Tensor, "batch d_hidden"],
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """A cumulative sum; padding adds nothing."""
        added = self.project(inputs)
        if mask is not None:
            added = blank_padding(added, mask)
        contexts = state[:, None] + torch.cumsum(added, dim=1)
        outputs = contexts if mask is None else blank_padding(contexts, mask)
        return Unrolled(outputs, contexts[:, -1])


# The structurally constrained recurrent network: fast units and slow units.


class ScrnCell(Cell[Tensor]):
    """Part of the state decays at a fixed slow rate, the rest is a plain recurrent network.

    Mikolov et al., 2014 (https://arxiv.org/abs/1412.7753), section 3.2, equations 5 and 6::

        c_t = (1 - alpha) A x_t + alpha c_(t-1)
        s_t = sigmoid(P c_t + U x_t + W s_(t-1))
        y_t = h(V s_t + B c_t)

    The output is ``[s_t, c_t]``, so that one linear layer on it is ``V s_t + B c_t``. As one
    network its recurrent matrix is ``[[W, P], [0, alpha I]]``; its lower half is not learned. We
    add a bias to ``s``, which the paper's inputs (one-hot words) did not need.

    Args:
        n_slow: Number of slow units among the ``d_hidden``. Default: a quarter (the paper has 40
        with 100 fast ones and 10 with 40).
        alpha: Decay of a slow unit per step; 0.95 throughout the paper.
    """

    def __init__(
        self, d_input: int, d_hidden: int, *, n_slow: int | None = None, alpha: float = 0.95
    ) -> None:
        super().__init__(d_input, d_hidden)
        self.n_slow = max(1, d_hidden // 4) if n_slow is None else n_slow
        self.n_fast = d_hidden - self.n_slow
        if self.n_fast < 1 or self.n_slow < 1:
            raise UsageError(
                f"an SCRN needs fast and slow units, got {self.n_slow} slow of {d_hidden}",
                hint="choose n_slow between 1 and d_hidden - 1",
            )
        self.alpha = alpha
        self.fast_input = nn.Linear(d_input, self.n_fast)
        self.slow_input = nn.Linear(d_input, self.n_slow, bias=False)
        self.state_proj = nn.Linear(d_hidden, self.n_fast, bias=False)

    def start(self, n: int) -> Float[Tensor, "batch d_hidden"]:
        """Zeros."""
        return self.zeros(n, self.d_hidden)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_hidden"]:
        """``[U x + b, (1 - alpha) A x]``, one product."""
        slow = (1 - self.alpha) * self.slow_input.weight
        bias = torch.cat([self.fast_input.bias, slow.new_zeros(self.n_slow)])
        return functional.linear(inputs, torch.cat([self.fast_input.weight, slow]), bias)

    def advance(
        self, projected: Float[Tensor, "batch d_hidden"], state: Float[Tensor, "batch d_hidden"]
    ) -> CellOutput:
        """Update the slow units first: the fast ones read their new values."""
        from_input, added = projected.split([self.n_fast, self.n_slow], dim=1)
        fast, slow = state.split([self.n_fast, self.n_slow], dim=1)
        slow = torch.add(added, slow, alpha=self.alpha)
        read = torch.cat([fast, slow], dim=1)
        fast = torch.addmm(from_input, read, self.state_proj.weight.T).sigmoid()
        hidden = torch.cat([fast, slow], dim=1)
        return CellOutput(hidden, hidden)


class ClockworkState(NamedTuple):
    """The units and the index of the next step."""

    hidden: Float[Tensor, "batch d_hidden"]
    time: Int[Tensor, " batch"]


class ClockworkCell(Cell[ClockworkState]):
    """An Elman cell whose groups are updated every 1, 2, 4, ... steps and constant in between.

    Koutnik et al., 2014 (https://arxiv.org/abs/1402.3511), section 3: at step t a group with period
    T is updated if T divides t; it reads groups that are as slow or slower, never a faster one. So
    a slow group keeps a value unchanged over T steps, and the gradient reaches as far. Earlier, El
    Hihi and Bengio (1995) built hierarchies of delays for the same reason.

    Args:
        periods: One per group; units are divided evenly. The paper uses powers of two.
    """

    reads: Bool[Tensor, "d_hidden d_hidden"]
    periods: Int[Tensor, " d_hidden"]

    def __init__(
        self, d_input: int, d_hidden: int, *, periods: tuple[int, ...] = (1, 2, 4, 8, 16)
    ) -> None:
        super().__init__(d_input, d_hidden)
        if not periods or min(periods) < 1 or len(periods) > d_hidden:
            raise UsageError(
                f"a clockwork cell needs 1 to {d_hidden} periods of at least 1, got {periods}",
                hint="for example periods=(1, 2, 4, 8)",
            )
        self.input_proj = nn.Linear(d_input, d_hidden)
        self.state_proj = nn.Linear(d_hidden, d_hidden, bias=False)
        group = torch.arange(d_hidden) * len(periods) // d_hidden
        period = torch.tensor(sorted(periods))[group]
        self.register_buffer("periods", period)
        self.register_buffer("reads", period[None, :] >= period[:, None])  # [to, from]

    def start(self, n: int) -> ClockworkState:
        """Zeros, at step 0, at which every group is updated."""
        time = torch.zeros(n, dtype=torch.long, device=self.periods.device)
        return ClockworkState(self.zeros(n, self.d_hidden), time)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_hidden"]:
        """``U x + b``."""
        return self.input_proj(inputs)

    def advance(
        self, projected: Float[Tensor, "batch d_hidden"], state: ClockworkState
    ) -> CellOutput:
        """Update the groups whose period divides the step."""
        return self.advancing()(projected, state)

    def advancing(self) -> Callable[[Tensor, Any], CellOutput]:
        """The same for many steps: forbidden connections are masked once."""
        weight = (self.state_proj.weight * self.reads).T

        def advance(projected: Tensor, state: ClockworkState) -> CellOutput:
            moved = torch.addmm(projected, state.hidden, weight).tanh()
            moves = state.time[:, None] % self.periods == 0  # [batch, d_hidden]
            hidden = torch.where(moves, moved, state.hidden)
            return CellOutput(hidden, ClockworkState(hidden, state.time + 1))

        return advance
