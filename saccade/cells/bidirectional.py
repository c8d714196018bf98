"""Two cells, one reading forwards and one backwards."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.cells.cell import Cell, Unrolled
from saccade.cells.padding import reverse


class BothStates(NamedTuple):
    """The last states of the two readings: at the end of the sequence, and at its beginning."""

    forward: Any
    backward: Any


class Bidirectional(nn.Module):
    """Each step's output knows what came before it and what comes after it.

    Schuster and Paliwal, 1997: the outputs of both readings side by side, ``[forward, backward]``.
    The backward reading begins at each row's last real step, not at the padding. There is no single
    step: the whole sequence must be there.
    """

    def __init__(self, forward_cell: Cell, backward_cell: Cell) -> None:
        super().__init__()
        self.forward_cell = forward_cell
        self.backward_cell = backward_cell
        self.d_input = forward_cell.d_input
        self.d_hidden = forward_cell.d_hidden + backward_cell.d_hidden

    def unroll(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: BothStates | None = None,
        *,
        mask: Bool[Tensor, "batch pos"] | None = None,
    ) -> Unrolled:
        """Read whole sequences both ways; the state is `BothStates`."""
        first, last = (None, None) if state is None else state
        ahead = self.forward_cell.unroll(inputs, first, mask=mask)
        back = self.backward_cell.unroll(reverse(inputs, mask), last, mask=mask)
        outputs = torch.cat([ahead.outputs, reverse(back.outputs, mask)], dim=2)
        return Unrolled(outputs, BothStates(ahead.state, back.state))
