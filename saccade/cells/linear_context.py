"""A context that only adds: the linear self-loop with weight one."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.cells.cell import Cell, CellOutput, Unrolled
from saccade.cells.padding import blank_padding


class LinearContextCell(Cell[Tensor]):
    """``c_t = c_(t-1) + U x_t``: nothing is forgotten, and no gradient fades or grows.

    Often drawn as Elman's network ("no weights from the last context: they are fixed to one"); his
    own copies the hidden units (`ElmanCell`). Without a nonlinearity between the steps the error
    carousel is constant by definition; what is missing is a way to choose what to add. No bias: it
    would count the steps.

    All steps at once are a cumulative sum.
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
