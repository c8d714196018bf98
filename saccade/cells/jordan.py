"""The Jordan cell: the hidden units read the network's last output."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.cells.cell import Cell, CellOutput
from saccade.errors import UsageError


class JordanCell(Cell[Tensor]):
    """``s_t = f(U x_t + W c_t + b)``, ``y_t = f(V s_t + c)``, ``c_(t+1) = decay c_t + y_t``.

    Jordan, "Serial order: a parallel distributed processing approach", 1986: what returns is the
    output, not the hidden units, so all that the network can remember has to pass through what it
    says. The context units may keep a share (``decay``) of their own last values, as in his
    figure. His units were logistic; ours are tanh, so that zero is the middle.

    The output has ``d_hidden`` units, and so has the hidden layer.
    """

    def __init__(self, d_input: int, d_hidden: int, *, decay: float = 0.0) -> None:
        super().__init__(d_input, d_hidden)
        if not 0 <= decay < 1:
            raise UsageError(
                f"the decay of a Jordan cell is at least 0 and below 1, got {decay}",
                hint="0 keeps the last output alone",
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
