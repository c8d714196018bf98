"""The Elman cell: the hidden units read their own last values."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.cells.cell import Cell, CellOutput, Unrolled
from saccade.cells.kernel import run_kernel, weights_of


class ElmanCell(Cell[Tensor]):
    """``s_t = f(U x_t + W s_(t-1) + b)``: the plain recurrent network.

    Elman, "Finding structure in time", Cognitive Science 14, 1990: the context units hold a copy of
    the hidden units, and are read like an input. Elman used the logistic function; tanh keeps zero
    in the middle, and relu makes the IRNN (`irnn_cell`). The linear self-loop that is sometimes
    drawn as an Elman network is `LinearContextCell`.

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
        """By torch's kernel, unless the padding is not at the end."""
        return run_kernel(self, self.kernel, inputs, state=state, mask=mask)
