"""Recurrent networks whose weights are set by hand, to see what such a network can do."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.cells.linear_context import LinearContextCell


class HandSet(NamedTuple):
    """One linear unit that keeps its sum, and what is made of it."""

    cell: LinearContextCell
    """The unit: its self-loop has weight one."""
    output_weight: float
    output: Literal["linear", "logistic"]

    def read(self, inputs: Float[Tensor, "batch pos d_input"]) -> Float[Tensor, "batch pos"]:
        """The network's output after each step."""
        hidden = self.cell.unroll(inputs).outputs[:, :, 0]
        total = self.output_weight * hidden
        return total if self.output == "linear" else total.sigmoid()


def summing_rnn() -> HandSet:
    """One input; the output is the sum of all inputs so far. Every weight is 1.

    >>> summing_rnn().read(torch.tensor([[[2.0], [-0.5], [1.0], [1.0]]])).tolist()
    [[2.0, 1.5, 2.5, 3.5]]
    """
    return HandSet(_unit(1.0), 1.0, "linear")


def comparing_rnn() -> HandSet:
    """Two inputs; the output is near 1 while the total of the first is the larger, else near 0.

    The unit sums the first input minus the second (weights 1 and -1); a logistic output with
    weight 5 turns its sign into a decision.

    >>> steps = torch.tensor([[[2.0, -2.0], [0.0, 3.5], [1.0, 2.2]]])
    >>> [f"{value:.2f}" for value in comparing_rnn().read(steps)[0]]
    ['1.00', '0.92', '0.03']
    """
    return HandSet(_unit(1.0, -1.0), 5.0, "logistic")


@torch.no_grad()
def _unit(*weights: float) -> LinearContextCell:
    cell = LinearContextCell(len(weights), 1)
    cell.input_proj.weight.copy_(torch.tensor([weights]))
    return cell.requires_grad_(False)
