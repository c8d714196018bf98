"""Cells by name."""

import difflib
from collections.abc import Callable

from saccade.cells.batch_norm_lstm import BatchNormLstmCell
from saccade.cells.cell import Cell
from saccade.cells.clockwork import ClockworkCell
from saccade.cells.deep_transition import DeepOutputCell, DeepTransitionCell
from saccade.cells.elman import ElmanCell
from saccade.cells.gru import GruCell
from saccade.cells.irnn import irnn_cell
from saccade.cells.jordan import JordanCell
from saccade.cells.layer_norm_lstm import LayerNormLstmCell
from saccade.cells.linear_context import LinearContextCell
from saccade.cells.lstm import LstmCell
from saccade.cells.scrn import ScrnCell
from saccade.cells.stacked import StackedCell
from saccade.cells.unitary import UnitaryCell
from saccade.errors import UsageError

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
# Those whose gates can begin so that a value is kept for long.
_KEEPING = {"gru": GruCell, "lstm": LstmCell}


def register_cell(name: str, build: Build) -> None:
    """Make a cell of one's own known by name; ``build(d_input, d_hidden)`` makes one."""
    _CELLS[name] = build


def cell_names() -> tuple[str, ...]:
    """The names that `make_cell` knows."""
    return tuple(sorted(_CELLS))


def make_cell(name: str, d_input: int, d_hidden: int, *, longest: int | None = None) -> Cell:
    """A cell by its name, every other choice as its class has it.

    Args:
        longest: How many steps a value may have to be kept, for cells with gates that can tell.

    >>> type(make_cell("gru", 3, 5)).__name__
    'GruCell'
    """
    if name not in _CELLS:
        near = difflib.get_close_matches(name, _CELLS, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"no cell named {name!r}", hint=f"{meant}there are {', '.join(cell_names())}"
        )
    if longest is None:
        return _CELLS[name](d_input, d_hidden)
    if name not in _KEEPING:
        raise UsageError(
            f"a cell named {name!r} cannot be told how long to keep a value",
            hint=f"only {' and '.join(_KEEPING)} can; leave it out",
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
    """Layers of one kind of cell, each as wide as what it reads; see `StackedCell`."""
    widths = [d_input, *[d_hidden] * n_layers]
    cells = [
        make_cell(name, widths[k] + (widths[k - skip] if 0 < skip <= k else 0), d_hidden)
        for k in range(n_layers)
    ]
    return StackedCell(cells, dropout=dropout, residual_from=residual_from, skip=skip)
