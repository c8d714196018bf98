"""A sequence read step by step, every state kept."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.cells.cell import Cell
from saccade.cells.state import map_tensors, tensors_of


class Recorded(NamedTuple):
    """What a cell went through."""

    outputs: Float[Tensor, "batch pos d_hidden"]
    states: list[Any]
    """One more than there are steps: the first is the one before them.

    Each tensor stands by itself: its gradient is what reaches it from later steps, and from this
    step's output where that is the tensor, but not what passes through another tensor of the same
    state (the carried value of an LSTM is also in its hidden one).
    """


def record(cell: Cell, inputs: Float[Tensor, "batch pos d_input"], state: Any = None) -> Recorded:
    """Unroll a cell with all its states; the loop, never a kernel, so that each can be asked."""
    states = [cell.start(len(inputs)) if state is None else state]
    advance = cell.advancing()
    outputs = []
    for x in cell.project(inputs.transpose(0, 1)).unbind(0):
        output, new = advance(x, states[-1])
        alone = map_tensors(lambda tensor: tensor.view_as(tensor), new)
        pairs = zip(tensors_of(new), tensors_of(alone), strict=True)
        outputs.append(next((after for before, after in pairs if before is output), output))
        states.append(alone)
    return Recorded(torch.stack(outputs, dim=1), states)
