"""A GRU unrolled: its state is attention over its own past."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.cells.gru import GruCell


class PastAttention(NamedTuple):
    """What a GRU's state is made of, after each step."""

    weights: Float[Tensor, "batch query_pos key_pos d_hidden"]
    """For each unit, how much of each value is in the state: they are positive and sum to 1."""
    values: Float[Tensor, "batch key_pos d_hidden"]
    """The first state, then the candidates of all steps."""

    def read(self) -> Float[Tensor, "batch query_pos d_hidden"]:
        """The weighted sum of the values: the GRU's outputs."""
        return torch.einsum("bqkd,bkd->bqd", self.weights, self.values)


def attention_over_past(
    cell: GruCell,
    inputs: Float[Tensor, "batch pos d_input"],
    state: Float[Tensor, "batch d_hidden"] | None = None,
) -> PastAttention:
    """The weights with which a GRU reads its past; ``read()`` gives its outputs back exactly.

    ``h_t = u_t h_(t-1) + (1 - u_t) c_t`` put into itself until nothing is left but candidates::

        h_t = sum_(i=1..t) (1 - u_i) (prod_(j=i+1..t) u_j) c_i  +  (prod_(j=1..t) u_j) h_0

    which is attention with one head a unit: its weights sum to one, but each depends on all that
    follow it, and the candidates on the states. `FreedAttention` frees both, step by step, until
    it is self-attention (K. Cho's derivation). In print the products have been seen with other
    bounds; these are the ones that hold.
    """
    first = cell.start(len(inputs)) if state is None else state
    outputs = cell.unroll(inputs, first).outputs
    before = torch.cat([first[:, None], outputs[:, :-1]], dim=1)
    update, candidate = cell.gates(cell.project(inputs), before)  # [batch, pos, d_hidden]
    batch, n, d_hidden = update.shape
    weights = first.new_ones(batch, 1, d_hidden)  # before the first step all weight is on h_0
    rows = []
    for t in range(n):
        u = update[:, t : t + 1]
        weights = torch.cat([u * weights, 1 - u], dim=1)
        rows.append(torch.nn.functional.pad(weights, (0, 0, 0, n - 1 - t)))
    return PastAttention(torch.stack(rows, dim=1), torch.cat([first[:, None], candidate], dim=1))
