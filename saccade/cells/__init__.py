"""Recurrent cells and their stacks, and what is learnt from looking into them."""

from saccade.cells.attention_over_past import PastAttention, attention_over_past
from saccade.cells.batch_norm_lstm import BatchNormLstmCell
from saccade.cells.bidirectional import Bidirectional, BothStates
from saccade.cells.cell import Cell, CellOutput, Unrolled
from saccade.cells.clockwork import ClockworkCell
from saccade.cells.deep_transition import DeepOutputCell, DeepTransitionCell
from saccade.cells.elman import ElmanCell
from saccade.cells.freed_attention import FreedAttention, FreedOutput
from saccade.cells.gru import GruCell
from saccade.cells.irnn import irnn_cell
from saccade.cells.jacobian_penalty import JacobianPenalty, jacobian_penalty
from saccade.cells.jordan import JordanCell
from saccade.cells.layer_norm_lstm import LayerNormLstmCell
from saccade.cells.learned_start import LearnedStart
from saccade.cells.linear_context import LinearContextCell
from saccade.cells.lstm import LstmCell, LstmState
from saccade.cells.make import cell_names, make_cell, make_stack, register_cell
from saccade.cells.recording import Recorded, record
from saccade.cells.scrn import ScrnCell
from saccade.cells.stacked import StackedCell
from saccade.cells.state import detach, select_rows
from saccade.cells.stateful import Stateful
from saccade.cells.unitary import UnitaryCell

__all__ = [
    "BatchNormLstmCell",
    "Bidirectional",
    "BothStates",
    "Cell",
    "CellOutput",
    "ClockworkCell",
    "DeepOutputCell",
    "DeepTransitionCell",
    "ElmanCell",
    "FreedAttention",
    "FreedOutput",
    "GruCell",
    "JacobianPenalty",
    "JordanCell",
    "LayerNormLstmCell",
    "LearnedStart",
    "LinearContextCell",
    "LstmCell",
    "LstmState",
    "PastAttention",
    "Recorded",
    "ScrnCell",
    "StackedCell",
    "Stateful",
    "UnitaryCell",
    "Unrolled",
    "attention_over_past",
    "cell_names",
    "detach",
    "irnn_cell",
    "jacobian_penalty",
    "make_cell",
    "make_stack",
    "record",
    "register_cell",
    "select_rows",
]
