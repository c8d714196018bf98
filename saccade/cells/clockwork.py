"""The clockwork cell: groups of units that move at different speeds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.cells.cell import Cell, CellOutput
from saccade.errors import UsageError


class ClockworkState(NamedTuple):
    """The units, and which step comes next."""

    hidden: Float[Tensor, "batch d_hidden"]
    time: Int[Tensor, " batch"]


class ClockworkCell(Cell[ClockworkState]):
    """An Elman cell whose groups are updated every 1, 2, 4, ... steps and stand still in between.

    Koutnik et al., 2014 (https://arxiv.org/abs/1402.3511), section 3: at step t a group with period
    T moves if T divides t; it reads the groups that are as slow or slower, never a faster one. A
    slow group so carries a value over T steps without touching it, and the gradient comes back as
    far. Long before, El Hihi and Bengio (1995) built hierarchies of delays for the same reason.

    Args:
        periods: One a group, the units being shared out evenly. The paper takes powers of two.
    """

    reads: Bool[Tensor, "d_hidden d_hidden"]
    periods: Int[Tensor, " d_hidden"]

    def __init__(
        self, d_input: int, d_hidden: int, *, periods: tuple[int, ...] = (1, 2, 4, 8, 16)
    ) -> None:
        super().__init__(d_input, d_hidden)
        if not periods or min(periods) < 1 or len(periods) > d_hidden:
            raise UsageError(
                f"a clockwork cell needs 1 to {d_hidden} periods of at least 1, got {periods}",
                hint="for example periods=(1, 2, 4, 8)",
            )
        self.input_proj = nn.Linear(d_input, d_hidden)
        self.state_proj = nn.Linear(d_hidden, d_hidden, bias=False)
        group = torch.arange(d_hidden) * len(periods) // d_hidden
        period = torch.tensor(sorted(periods))[group]
        self.register_buffer("periods", period)
        self.register_buffer("reads", period[None, :] >= period[:, None])  # [to, from]

    def start(self, n: int) -> ClockworkState:
        """Zeros, at step 0, at which every group moves."""
        time = torch.zeros(n, dtype=torch.long, device=self.periods.device)
        return ClockworkState(self.zeros(n, self.d_hidden), time)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_hidden"]:
        """``U x + b``."""
        return self.input_proj(inputs)

    def advance(
        self, projected: Float[Tensor, "batch d_hidden"], state: ClockworkState
    ) -> CellOutput:
        """Move the groups whose time has come."""
        return self.advancing()(projected, state)

    def advancing(self) -> Callable[[Tensor, Any], CellOutput]:
        """The same for many steps: what no group may read is cut from the weights once."""
        weight = (self.state_proj.weight * self.reads).T

        def advance(projected: Tensor, state: ClockworkState) -> CellOutput:
            moved = torch.addmm(projected, state.hidden, weight).tanh()
            moves = state.time[:, None] % self.periods == 0  # [batch, d_hidden]
            hidden = torch.where(moves, moved, state.hidden)
            return CellOutput(hidden, ClockworkState(hidden, state.time + 1))

        return advance
