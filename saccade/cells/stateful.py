"""Long texts in pieces: the state is carried from batch to batch, the gradient is not."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from saccade.cells.cell import Cell, Unrolled
from saccade.cells.state import detach, replace_rows, select_rows


class Stateful:
    """A cell that goes on where its last batch ended.

    Row r of a batch must continue row r of the one before. Gradients stop between batches: this is
    back-propagation through time truncated to the length of a piece. Unlike elsewhere in this
    package something is kept between calls, since that is what this is for; it is in plain sight as
    ``state``, which may be saved and set.

    >>> import torch
    >>> from saccade.cells.gru import GruCell
    >>> reader = Stateful(GruCell(3, 5))
    >>> _ = reader.unroll(torch.zeros(2, 7, 3))
    >>> reader.state.requires_grad
    False
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.state: Any = None

    def unroll(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        *,
        mask: Bool[Tensor, "batch pos"] | None = None,
    ) -> Unrolled:
        """Read the next piece of every row."""
        unrolled = self.cell.unroll(inputs, self.state, mask=mask)
        self.state = detach(unrolled.state)
        return unrolled

    def forget(self, rows: Bool[Tensor, " batch"] | None = None) -> None:
        """Begin afresh: all rows, or those that are True (where a new text begins)."""
        if rows is None or self.state is None:
            self.state = None
            return
        index = rows.nonzero()[:, 0]
        fresh = select_rows(detach(self.cell.start(len(rows))), index)
        self.state = replace_rows(self.state, index, fresh)
