"""What every recurrent cell is: a step from one state to the next, and many steps in a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.cells.state import detach, replace_rows, select_rows
from saccade.errors import UsageError

__all__ = ["Cell", "CellOutput", "Unrolled", "detach", "select_rows"]

State = TypeVar("State")
"""A tensor, or a NamedTuple of states; the first axis of every tensor is the batch."""


class CellOutput(NamedTuple):
    """One step of a cell."""

    output: Float[Tensor, "batch d_hidden"]
    state: Any


class Unrolled(NamedTuple):
    """Many steps of a cell."""

    outputs: Float[Tensor, "batch pos d_hidden"]
    """Zero where the step was padding."""
    state: Any
    """After the last step of each row that was not padding."""


Advance = Callable[[Float[Tensor, "batch d_projected"], State], CellOutput]


class Cell(nn.Module, ABC, Generic[State]):
    """Reads a sequence step by step: ``output, state = step(x, state)``.

    A cell says three things. `project` is what an input contributes by itself: for a whole sequence
    it is one matrix product before the first step. `advance` is the step proper. `start` is the
    state before the first step. The loop over the steps is written once, here; a cell that has a
    faster way through a sequence overrides `run`.
    """

    def __init__(self, d_input: int, d_hidden: int) -> None:
        super().__init__()
        if d_input < 1 or d_hidden < 1:
            raise UsageError(
                f"a cell needs sizes of at least 1, got d_input {d_input} and d_hidden {d_hidden}",
                hint="check the sizes in the settings",
            )
        self.d_input = d_input
        self.d_hidden = d_hidden

    @abstractmethod
    def start(self, n: int) -> State:
        """The state of ``n`` rows before the first step."""

    @abstractmethod
    def advance(self, projected: Float[Tensor, "batch d_projected"], state: State) -> CellOutput:
        """One step, from an input that was projected."""

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_to"]:
        """What the inputs contribute by themselves, for any number of steps at once."""
        return inputs

    def advancing(self) -> Advance[State]:
        """`advance` for many steps: weights that are made of others are made here, once."""
        return self.advance

    def step(self, x: Float[Tensor, "batch d_input"], state: State) -> CellOutput:
        """One step: the new output and the new state."""
        return self.advance(self.project(x), state)

    def unroll(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: State | None = None,
        *,
        mask: Bool[Tensor, "batch pos"] | None = None,
    ) -> Unrolled:
        """Read whole sequences.

        Args:
            state: Where to begin; `start` unless given.
            mask: True = a real step. Where it is False the state is kept and the output is zero.
        """
        if inputs.shape[1] == 0:
            raise UsageError(
                f"a cell reads at least one step, got inputs of shape {tuple(inputs.shape)}",
                hint="leave out empty sequences",
            )
        state = self.start(len(inputs)) if state is None else state
        if mask is not None and bool(mask.all()):
            mask = None
        return self.run(inputs, state, mask)

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: State,
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """What `unroll` does after its checks. A cell with a kernel of its own overrides this."""
        return self.loop(inputs, state, mask)

    def loop(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: State,
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """One `advance` after the other; rows that are padding take no part in a step."""
        # Time first, so that each step's slice is one block of memory; and unbind, because the
        # gradient of n single indexings would be n tensors as large as the whole.
        projected = self.project(inputs.transpose(0, 1)).unbind(0)
        advance = self.advancing()
        rows = [None] * len(projected) if mask is None else _rows(mask)
        outputs = []
        for x, some in zip(projected, rows, strict=True):
            if some is None:
                output, state = advance(x, state)
            else:
                output = self.zeros(len(x), self.d_hidden)
                if len(some):
                    shown, new = advance(x.index_select(0, some), select_rows(state, some))
                    output = output.index_copy(0, some, shown)
                    state = replace_rows(state, some, new)
            outputs.append(output)
        return Unrolled(torch.stack(outputs, dim=1), state)

    def zeros(self, *shape: int) -> Float[Tensor, "..."]:
        """Zeros where the weights are, in their number type: what most cells start from."""
        weight = next(self.parameters())
        return torch.zeros(shape, dtype=weight.dtype, device=weight.device)


def _rows(mask: Bool[Tensor, "batch pos"]) -> list[Tensor | None]:
    """For each step the rows that take part in it; None = all of them."""
    is_full = mask.all(0).tolist()
    columns = mask.unbind(1)
    return [
        None if full else column.nonzero()[:, 0]
        for full, column in zip(is_full, columns, strict=True)
    ]
