"""Cells upon cells: each layer reads what the one below it put out."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.attention.dropout import Dropout
from saccade.cells.cell import Cell, CellOutput, Unrolled
from saccade.errors import UsageError


class StackedCell(Cell[tuple]):
    """Several layers as one cell; its state is one state a layer.

    Pascanu et al., 2014 (https://arxiv.org/abs/1312.6026), figure 2 (d), with three things that
    make a deep stack learn:

    - dropout between the layers and never from step to step, which would wipe out what the state
      holds (Zaremba et al., 2014, https://arxiv.org/abs/1409.2329);
    - residual connections (``residual_from``): from this layer on a layer's input is added to its
      output. Wu et al., 2016 (https://arxiv.org/abs/1609.08144), section 3.1, begin at the third
      (index 2); without them a stack of LSTMs stops improving at 4 to 5 layers;
    - skip connections (``skip``): each layer also reads what came in ``skip`` layers further down,
      joined to its input. The first input counts as a layer.

    A sequence runs through one whole layer after the other, so fused kernels are used.

    >>> from saccade.cells.gru import GruCell
    >>> stack = StackedCell([GruCell(3, 5), GruCell(5, 7)], dropout=0.1)
    >>> stack.unroll(torch.zeros(2, 11, 3)).outputs.shape
    torch.Size([2, 11, 7])
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        dropout: float = 0.0,
        residual_from: int | None = None,
        skip: int = 0,
    ) -> None:
        if not cells:
            raise UsageError("a stack needs at least one cell", hint="give a list of cells")
        super().__init__(cells[0].d_input, cells[-1].d_hidden)
        self.layers = nn.ModuleList(cells)
        self.dropout = Dropout(dropout)
        self.residual_from = len(cells) if residual_from is None else residual_from
        self.skip = skip
        self._check_sizes()

    def _check_sizes(self) -> None:
        widths = [self.d_input, *(cell.d_hidden for cell in self._cells())]
        for layer, cell in enumerate(self._cells()):
            expected = widths[layer] + (widths[layer - self.skip] if self._skips_to(layer) else 0)
            if cell.d_input != expected:
                raise UsageError(
                    f"layer {layer} of the stack gets {expected} numbers a step, "
                    f"its cell reads {cell.d_input}",
                    hint="with `make_stack` the sizes come out right",
                )
            if layer >= self.residual_from and cell.d_hidden != widths[layer]:
                raise UsageError(
                    f"layer {layer} is residual but goes from {widths[layer]} to {cell.d_hidden}",
                    hint="give residual layers one size, or begin them later",
                )

    def _cells(self) -> list[Cell]:
        return [cell for cell in self.layers if isinstance(cell, Cell)]

    def _skips_to(self, layer: int) -> bool:
        return self.skip > 0 and layer >= self.skip

    def start(self, n: int) -> tuple:
        """Each layer's own."""
        return tuple(cell.start(n) for cell in self._cells())

    def advance(self, projected: Float[Tensor, "batch d_input"], state: tuple) -> CellOutput:
        """One step of every layer, from the lowest up."""
        below, states = [projected], []
        for layer, (cell, old) in enumerate(zip(self._cells(), state, strict=True)):
            output, new = cell.step(self._input(below, layer), old)
            below.append(self._output(output, below, layer))
            states.append(new)
        return CellOutput(below[-1], tuple(states))

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: tuple,
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """All steps of a layer before the next one begins."""
        below, states = [inputs], []
        for layer, (cell, old) in enumerate(zip(self._cells(), state, strict=True)):
            outputs, new = cell.run(self._input(below, layer), old, mask)
            below.append(self._output(outputs, below, layer))
            states.append(new)
        outputs = below[-1] if mask is None else below[-1].masked_fill(~mask[:, :, None], 0.0)
        return Unrolled(outputs, tuple(states))

    def _input(self, below: list[Tensor], layer: int) -> Float[Tensor, "*steps d_to"]:
        parts = below[-1:]
        if self._skips_to(layer):
            parts = [below[-1], below[layer - self.skip]]
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        # The input of the lowest layer is the caller's to drop.
        return self.dropout(x) if layer else x

    def _output(
        self, output: Float[Tensor, "*steps d_to"], below: list[Tensor], layer: int
    ) -> Float[Tensor, "*steps d_to"]:
        return output + below[layer] if layer >= self.residual_from else output
