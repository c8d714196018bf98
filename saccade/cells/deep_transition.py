"""Recurrent networks that are deep within a step: in the transition, or in the output."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.cells.cell import Cell, CellOutput, Unrolled
from saccade.errors import UsageError


class DeepTransitionCell(Cell[Tensor]):
    """From one state to the next through several layers: DT-RNN.

    Pascanu et al., 2014 (https://arxiv.org/abs/1312.6026), section 3.3.1 and figure 2 (b)::

        h_t = tanh(W_n tanh( ... tanh(W_1 h_(t-1) + U x_t + b_1) ... ) + b_n)

    More layers a step make the way of a gradient through time longer; the shortcut of figure 2
    (b*), DT(S)-RNN, adds ``W_s h_(t-1)`` in the last layer and so keeps a way of one layer a step.
    The paper's layers are sigmoid or maxout; ours are tanh.
    """

    def __init__(
        self, d_input: int, d_hidden: int, *, n_layers: int = 2, has_shortcut: bool = False
    ) -> None:
        super().__init__(d_input, d_hidden)
        if n_layers < 1:
            raise UsageError(
                f"a transition has at least 1 layer, got {n_layers}", hint="2 is the paper's"
            )
        self.input_proj = nn.Linear(d_input, d_hidden)
        self.state_proj = nn.Linear(d_hidden, d_hidden, bias=False)
        deeper = (nn.Linear(d_hidden, d_hidden) for _ in range(n_layers - 1))
        self.deeper = nn.ModuleList(deeper)
        shortcut = nn.Linear(d_hidden, d_hidden, bias=False) if has_shortcut else None
        self.shortcut = shortcut

    def start(self, n: int) -> Float[Tensor, "batch d_hidden"]:
        """Zeros."""
        return self.zeros(n, self.d_hidden)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_hidden"]:
        """``U x + b_1``."""
        return self.input_proj(inputs)

    def advance(
        self, projected: Float[Tensor, "batch d_hidden"], state: Float[Tensor, "batch d_hidden"]
    ) -> CellOutput:
        """Through all layers once."""
        total = torch.addmm(projected, state, self.state_proj.weight.T)
        for layer in self.deeper:
            total = layer(total.tanh())
        if self.shortcut is not None:
            total = total + self.shortcut(state)
        hidden = total.tanh()
        return CellOutput(hidden, hidden)


class DeepOutputCell(Cell):
    """Any cell with a network upon its output: DOT-RNN is this upon a deep transition.

    Pascanu et al., 2014, section 3.3.2 and figure 2 (c). The output layers say what the state means
    for this step, so that the state itself need not be in that form. They are not part of the loop:
    all steps pass through them at once.
    """

    def __init__(self, cell: Cell, *, n_layers: int = 1) -> None:
        super().__init__(cell.d_input, cell.d_hidden)
        self.cell = cell
        d = cell.d_hidden
        layers = [layer for _ in range(n_layers) for layer in (nn.Linear(d, d), nn.Tanh())]
        self.output_layers = nn.Sequential(*layers)

    def start(self, n: int) -> object:
        """The inner cell's."""
        return self.cell.start(n)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_to"]:
        """The inner cell's."""
        return self.cell.project(inputs)

    def advance(self, projected: Float[Tensor, "batch d_projected"], state: object) -> CellOutput:
        """The inner cell's step, then the output layers."""
        output, state = self.cell.advance(projected, state)
        return CellOutput(self.output_layers(output), state)

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: object,
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """The inner cell's way, then the output layers on all steps at once."""
        outputs, state = self.cell.run(inputs, state, mask)
        outputs = self.output_layers(outputs)
        if mask is not None:
            outputs = outputs.masked_fill(~mask[:, :, None], 0.0)
        return Unrolled(outputs, state)
