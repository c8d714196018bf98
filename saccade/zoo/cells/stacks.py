"""Stacks of cells, bidirectional and deep variants, pyramids, and cells by name."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError, suggest
from saccade.zoo.cells.cell import (
    Cell,
    CellOutput,
    Unrolled,
    detach,
    replace_rows,
    reverse,
    select_rows,
)
from saccade.zoo.cells.gru import GruCell
from saccade.zoo.cells.lstm import BatchNormLstmCell, LayerNormLstmCell, LstmCell
from saccade.zoo.cells.simple import (
    ClockworkCell,
    ElmanCell,
    JordanCell,
    LinearContextCell,
    ScrnCell,
    irnn_cell,
)
from saccade.zoo.cells.unitary import UnitaryCell
from saccade.zoo.fast.dropout import Dropout

# Stacked cells: each layer reads the output of the layer below.


class StackedCell(Cell[tuple]):
    """Several layers as one cell; its state has one state per layer.

    Pascanu et al., 2014 (https://arxiv.org/abs/1312.6026), figure 2 (d), with three techniques for
    training deep stacks:

    - dropout between the layers and never from step to step, which would erase the state (Zaremba
      et al., 2014, https://arxiv.org/abs/1409.2329);
    - residual connections (``residual_from``): from this layer on a layer's input is added to its
      output. Wu et al., 2016 (https://arxiv.org/abs/1609.08144), section 3.1, start at the third
      (index 2); without them a stack of LSTMs stops improving at 4 to 5 layers;
    - skip connections (``skip``): each layer also reads the input of the layer ``skip`` below,
      concatenated to its own. The first input counts as a layer.

    A sequence runs through one whole layer after the other, so fused kernels are used.

    >>> from saccade.zoo.cells.gru import GruCell
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
                    hint="`make_stack` computes the sizes",
                )
            if layer >= self.residual_from and cell.d_hidden != widths[layer]:
                raise UsageError(
                    f"layer {layer} is residual but goes from {widths[layer]} to {cell.d_hidden}",
                    hint="give residual layers one size, or raise residual_from",
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
        """All steps of a layer before the next layer."""
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
        # Dropout of the lowest layer's input is up to the caller.
        return self.dropout(x) if layer else x

    def _output(
        self, output: Float[Tensor, "*steps d_to"], below: list[Tensor], layer: int
    ) -> Float[Tensor, "*steps d_to"]:
        return output + below[layer] if layer >= self.residual_from else output


# Bidirectional cells.


class BothStates(NamedTuple):
    """The final states of both directions: at the end of the sequence, and at its start."""

    forward: Any
    backward: Any


class Bidirectional(nn.Module):
    """Two cells, one per direction: each output depends on the past and the future.

    Schuster and Paliwal, 1997: the outputs of both directions concatenated, ``[forward,
    backward]``. The backward pass starts at each row's last real step, not at the padding. There is
    no single step: the whole sequence is needed.
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
        """Read whole sequences in both directions; the state is `BothStates`."""
        first, last = (None, None) if state is None else state
        ahead = self.forward_cell.unroll(inputs, first, mask=mask)
        back = self.backward_cell.unroll(reverse(inputs, mask), last, mask=mask)
        outputs = torch.cat([ahead.outputs, reverse(back.outputs, mask)], dim=2)
        return Unrolled(outputs, BothStates(ahead.state, back.state))


# Recurrent networks that are deep within a step: in the transition, or in the output.


class DeepTransitionCell(Cell[Tensor]):
    """From one state to the next through several layers: DT-RNN.

    Pascanu et al., 2014 (https://arxiv.org/abs/1312.6026), section 3.3.1 and figure 2 (b)::

        h_t = tanh(W_n tanh( ... tanh(W_1 h_(t-1) + U x_t + b_1) ... ) + b_n)

    More layers per step make the gradient's path through time longer; the shortcut of figure 2
    (b*), DT(S)-RNN, adds ``W_s h_(t-1)`` in the last layer and keeps a path of one layer per step.
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
    """Any cell with a network on its output: DOT-RNN is this on a deep transition.

    Pascanu et al., 2014, section 3.3.2 and figure 2 (c). The output layers translate the state for
    this step, so that the state itself need not have that form. They are not part of the loop: all
    steps pass through them at once.
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
        """The inner cell's `run`, then the output layers on all steps at once."""
        outputs, state = self.cell.run(inputs, state, mask)
        outputs = self.output_layers(outputs)
        if mask is not None:
            outputs = outputs.masked_fill(~mask[:, :, None], 0.0)
        return Unrolled(outputs, state)


# The pyramid: each layer reads pairs of steps of the layer below, and has half as many.


class PyramidOutput(NamedTuple):
    """Output of the top layer of a pyramid."""

    outputs: Float[Tensor, "batch step d_hidden"]
    mask: Bool[Tensor, "batch step"]
    """True = contains at least one real step."""


class Pyramid(nn.Module):
    """Stacked bidirectional LSTMs, each over pairs of steps: ``h_i = f([g_2i, g_2i+1])``.

    Chan et al., 2016 (https://arxiv.org/abs/1508.01211), section 3.1, equation 5. With three layers
    the memory is 8 times shorter than the audio: attention converges sooner, and the LSTMs have
    fewer steps.

    Where we differ: the paper has one more LSTM below, over single frames; here the lowest layer
    reads pairs, too.

    >>> import torch
    >>> Pyramid(3, 5, n_layers=2)(torch.zeros(2, 7, 3), torch.ones(2, 7).bool()).outputs.shape
    torch.Size([2, 2, 10])
    """

    def __init__(self, d_input: int, d_hidden: int, *, n_layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [2 * d_input, *[4 * d_hidden] * (n_layers - 1)]
        self.layers = nn.ModuleList(
            Bidirectional(LstmCell(width, d_hidden), LstmCell(width, d_hidden)) for width in widths
        )
        self.d_hidden = 2 * d_hidden
        self.dropout = Dropout(dropout)

    def forward(
        self, steps: Float[Tensor, "batch pos d_input"], mask: Bool[Tensor, "batch pos"]
    ) -> PyramidOutput:
        """Read whole sequences; padding is at the end."""
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Bidirectional)
            steps, mask = pair_steps(self.dropout(steps) if number else steps, mask)
            steps = layer.unroll(steps, mask=mask).outputs
        return PyramidOutput(steps, mask)


def pair_steps(
    steps: Float[Tensor, "batch pos d"], mask: Bool[Tensor, "batch pos"]
) -> tuple[Float[Tensor, "batch pair d2"], Bool[Tensor, "batch pair"]]:
    """Pairs of steps concatenated; an odd last step is padded with zeros.

    >>> import torch
    >>> pair_steps(torch.arange(3.0).view(1, 3, 1), torch.ones(1, 3).bool())[0]
    tensor([[[0., 1.],
             [2., 0.]]])
    """
    blank = steps.masked_fill(~mask[:, :, None], 0.0)
    if steps.shape[1] % 2:
        blank = functional.pad(blank, (0, 0, 0, 1))
    return blank.unflatten(1, (-1, 2)).flatten(2), mask[:, ::2]


# Long texts in segments: the state is carried from batch to batch, the gradient is not.


class Stateful:
    """A cell that keeps its state from batch to batch.

    Row r of a batch must continue row r of the previous one. Gradients stop between batches: this
    is back-propagation through time truncated to the length of a segment. Unlike the rest of this
    package it keeps state between calls, by design; the attribute ``state`` may be saved and set.

    >>> import torch
    >>> from saccade.zoo.cells.gru import GruCell
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
        """Read the next segment of every row."""
        unrolled = self.cell.unroll(inputs, self.state, mask=mask)
        self.state = detach(unrolled.state)
        return unrolled

    def forget(self, rows: Bool[Tensor, " batch"] | None = None) -> None:
        """Reset all rows, or those that are True (where a new text begins)."""
        if rows is None or self.state is None:
            self.state = None
            return
        index = rows.nonzero()[:, 0]
        fresh = select_rows(detach(self.cell.start(len(rows))), index)
        self.state = replace_rows(self.state, index, fresh)


Build = Callable[[int, int], Cell]


def _relu(d_input: int, d_hidden: int) -> Cell:
    return ElmanCell(d_input, d_hidden, activation="relu")


def _shortcut(d_input: int, d_hidden: int) -> Cell:
    return DeepTransitionCell(d_input, d_hidden, has_shortcut=True)


def _deep_output(d_input: int, d_hidden: int) -> Cell:
    return DeepOutputCell(_shortcut(d_input, d_hidden))


_CELLS: dict[str, Build] = {
    "batch-norm-lstm": BatchNormLstmCell,
    "clockwork": ClockworkCell,
    "deep-output": _deep_output,
    "deep-transition": DeepTransitionCell,
    "deep-transition-shortcut": _shortcut,
    "elman": ElmanCell,
    "elman-relu": _relu,
    "gru": GruCell,
    "irnn": irnn_cell,
    "jordan": JordanCell,
    "layer-norm-lstm": LayerNormLstmCell,
    "linear-context": LinearContextCell,
    "lstm": LstmCell,
    "scrn": ScrnCell,
    "unitary": UnitaryCell,
}
# Cells with an initialisation for long time dependencies.
_KEEPING = {"gru": GruCell, "lstm": LstmCell}


def register_cell(name: str, build: Build) -> None:
    """Register a custom cell under a name; ``build(d_input, d_hidden)`` makes one."""
    _CELLS[name] = build


def cell_names() -> tuple[str, ...]:
    """The names that `make_cell` knows."""
    return tuple(sorted(_CELLS))


def make_cell(name: str, d_input: int, d_hidden: int, *, longest: int | None = None) -> Cell:
    """A cell by its name, with the defaults of its class.

    Args:
        longest: Longest time dependency in steps, for cells whose gates can be initialised for it.

    >>> type(make_cell("gru", 3, 5)).__name__
    'GruCell'
    """
    if name not in _CELLS:
        hint = suggest(name, _CELLS, f"there are {', '.join(cell_names())}")
        raise UsageError(f"no cell named {name!r}", hint=hint)
    if longest is None:
        return _CELLS[name](d_input, d_hidden)
    if name not in _KEEPING:
        raise UsageError(
            f"the cell {name!r} has no setting longest",
            hint=f"only {' and '.join(_KEEPING)} have it; leave it out",
        )
    return _KEEPING[name](d_input, d_hidden, longest=longest)


def make_stack(
    name: str,
    d_input: int,
    d_hidden: int,
    *,
    n_layers: int,
    dropout: float = 0.0,
    residual_from: int | None = None,
    skip: int = 0,
) -> StackedCell:
    """Layers of one kind of cell, with matching sizes; see `StackedCell`."""
    widths = [d_input, *[d_hidden] * n_layers]
    cells = [
        make_cell(name, widths[k] + (widths[k - skip] if 0 < skip <= k else 0), d_hidden)
        for k in range(n_layers)
    ]
    return StackedCell(cells, dropout=dropout, residual_from=residual_from, skip=skip)
