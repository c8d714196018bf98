"""The GRU cell, and a GRU whose update gate is an attention weight."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.cell import Cell, CellOutput, Unrolled, run_kernel, weights_of
from saccade.zoo.cells.lstm import keeping_bias
from saccade.zoo.fast.forms import is_fast
from saccade.zoo.fast.recurrence import attention_gru


class GruGates(NamedTuple):
    """Gates of one step of a GRU."""

    update: Float[Tensor, "*steps d_hidden"]
    """u: the share of the old value that is kept."""
    candidate: Float[Tensor, "*steps d_hidden"]
    """The candidate for the new value."""


class GruCell(Cell[Tensor]):
    """``h_t = u * h_(t-1) + (1 - u) * candidate``.

    Cho et al., 2014 (https://arxiv.org/abs/1406.1078), section 2.3. The candidate is ``tanh(W x_t +
    b + r * (U h_(t-1) + b'))``: the reset gate works after the product, as in torch's kernel and
    cuDNN's, and not before it as in the paper (``U (r * h_(t-1))``), so that all recurrent products
    of a step are one. ``u`` is the paper's z.

    A sequence runs through torch's own GRU kernel, which computes the same.

    Args:
        longest: Longest time dependency in steps. If given, the update gates are initialised to
            keep values for up to that long (`keeping_bias`).
    """

    def __init__(self, d_input: int, d_hidden: int, *, longest: int | None = None) -> None:
        super().__init__(d_input, d_hidden)
        self.kernel = nn.GRU(d_input, d_hidden, batch_first=True)
        weights = weights_of(self.kernel)
        nn.init.zeros_(weights.input_bias)
        if longest is not None:
            weights.input_bias.data[d_hidden : 2 * d_hidden] = keeping_bias(d_hidden, longest)
        nn.init.zeros_(weights.state_bias)

    def start(self, n: int) -> Float[Tensor, "batch d_hidden"]:
        """Zeros."""
        return self.zeros(n, self.d_hidden)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_gates"]:
        """``W x + b`` in torch's order: reset, update, candidate."""
        weights = weights_of(self.kernel)
        return functional.linear(inputs, weights.of_input, weights.input_bias)

    def gates(
        self, projected: Float[Tensor, "*steps d_gates"], state: Float[Tensor, "*steps d_hidden"]
    ) -> GruGates:
        """The update gate and the candidate, from a projected input and the previous state."""
        weights = weights_of(self.kernel)
        recurrent = functional.linear(state, weights.of_state, weights.state_bias)
        x_reset, x_update, x_candidate = projected.chunk(3, dim=-1)
        h_reset, h_update, h_candidate = recurrent.chunk(3, dim=-1)
        reset = (x_reset + h_reset).sigmoid()
        update = (x_update + h_update).sigmoid()
        candidate = torch.addcmul(x_candidate, reset, h_candidate).tanh()
        return GruGates(update, candidate)

    def advance(
        self, projected: Float[Tensor, "batch d_gates"], state: Float[Tensor, "batch d_hidden"]
    ) -> CellOutput:
        """Interpolate between candidate and old state by u."""
        gates = self.gates(projected, state)
        hidden = torch.lerp(gates.candidate, state, gates.update)
        return CellOutput(hidden, hidden)

    def run(
        self,
        inputs: Float[Tensor, "batch pos d_input"],
        state: Float[Tensor, "batch d_hidden"],
        mask: Bool[Tensor, "batch pos"] | None,
    ) -> Unrolled:
        """By torch's kernel if padding is at the end."""
        return run_kernel(self, self.kernel, inputs, state=state, mask=mask)


# A GRU whose update gate is an attention weight.


class AttentionGru(nn.Module):
    """``h_i = g_i c_i + (1 - g_i) h_(i-1)``: facts enter by their attention weight.

    Xiong et al., 2016 (https://arxiv.org/abs/1603.01417), section 3.3, equations 9 to 12: a GRU's
    reset gate and candidate, and in place of the update gate a given number for each fact. Unlike a
    weighted sum it keeps the order of facts. The candidate is ``tanh(W f + b + r * (U h + b'))``,
    with the reset gate after the product, as in `GruCell`.

    The facts' part of gates and candidates does not depend on the weights: `project` computes it
    once for several passes with other weights.

    >>> cell = AttentionGru(d_input=3, d_hidden=5)
    >>> facts = cell.project(torch.randn(2, 7, 3))
    >>> cell(facts, torch.zeros(2, 7)).tolist()  # nothing is attended, nothing is taken in
    [[0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(self, *, d_input: int, d_hidden: int) -> None:
        super().__init__()
        self.of_input = nn.Linear(d_input, 2 * d_hidden)
        self.of_state = nn.Linear(d_hidden, 2 * d_hidden)

    def project(
        self, facts: Float[Tensor, "batch fact d_input"]
    ) -> Float[Tensor, "batch fact d_gates"]:
        """``W f + b``: reset gate, candidate."""
        return self.of_input(facts)

    def forward(
        self,
        projected: Float[Tensor, "batch fact d_gates"],
        weights: Float[Tensor, "batch fact"],
    ) -> Float[Tensor, "batch d_hidden"]:
        """The state after the last fact; a fact of weight 0 changes nothing."""
        own = self.of_state
        if is_fast():
            return attention_gru(projected, weights, of_state=own.weight, bias=own.bias)
        hidden = projected.new_zeros(len(projected), own.in_features)
        for fact, weight in zip(projected.unbind(1), weights.unbind(1), strict=True):
            x_reset, x_candidate = fact.chunk(2, dim=1)
            h_reset, h_candidate = own(hidden).chunk(2, dim=1)
            reset = (x_reset + h_reset).sigmoid()
            candidate = (x_candidate + reset * h_candidate).tanh()
            hidden = weight[:, None] * candidate + (1 - weight[:, None]) * hidden
        return hidden
