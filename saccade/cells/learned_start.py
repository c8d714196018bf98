"""A first state that is learned."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.cells.cell import Cell, CellOutput, Unrolled
from saccade.cells.state import map_tensors, tensors_of


class LearnedStart(Cell):
    """Any cell with its own first state to learn, beginning at zero.

    An unrolled network usually has separate biases for its first step; a first state is the same
    thing, seen from the step before: it adds ``W s_0``.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell.d_input, cell.d_hidden)
        self.cell = cell
        first = [tensor[0].detach().clone() for tensor in tensors_of(cell.start(1))]
        # Counters are left to the cell.
        learned = [nn.Parameter(value) for value in first if value.is_floating_point()]
        self.first = nn.ParameterList(learned)

    def start(self, n: int) -> Any:
        """What was learned, the same for every row."""
        learned = iter(self.first)

        def fill(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            return next(learned).expand(n, *tensor.shape[1:])

        return map_tensors(fill, self.cell.start(n))

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_to"]:
        """The inner cell's."""
        return self.cell.project(inputs)

    def advance(self, projected: Float[Tensor, "batch d_projected"], state: Any) -> CellOutput:
        """The inner cell's."""
        return self.cell.advance(projected, state)

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: Any,
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """The inner cell's."""
        # A kernel wants memory of its own, not one row seen many times.
        return self.cell.run(inputs, map_tensors(torch.Tensor.contiguous, state), mask)
