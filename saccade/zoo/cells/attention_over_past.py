"""A GRU unrolled: its state is attention over its own past."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.zoo.attention.masks import causal_mask, masked_softmax
from saccade.zoo.cells.gru import GruCell


class PastAttention(NamedTuple):
    """A GRU's state as a weighted sum, after each step."""

    weights: Float[Tensor, "batch query_pos key_pos d_hidden"]
    """For each unit, the weight of each value in the state: positive, sum 1."""
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

    ``h_t = u_t h_(t-1) + (1 - u_t) c_t`` unrolled until only candidates are left::

        h_t = sum_(i=1..t) (1 - u_i) (prod_(j=i+1..t) u_j) c_i  +  (prod_(j=1..t) u_j) h_0

    which is attention with one head per unit: its weights sum to one, but each depends on all later
    gates, and the candidates on the states. `FreedAttention` removes both dependencies, step by
    step, until it is self-attention (K. Cho's derivation). Some publications have other bounds of
    the products; these are correct.
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


# From a GRU to self-attention in four steps, each a model that can be run.

Freed = Literal["weights", "values", "keys", "heads"]


class FreedOutput(NamedTuple):
    """Outputs and weights."""

    outputs: Float[Tensor, "batch pos d_hidden"]
    weights: Float[Tensor, "batch head query_pos key_pos"]


class FreedAttention(nn.Module):
    """A GRU's sum over its past, with its dependencies removed step by step.

    K. Cho's derivation. `attention_over_past` shows a GRU's state as ``sum_i w_i c_i`` with weights
    from its gates and candidates from its states. Values of ``freed``:

    - "weights": ``h_t = sum_i a_i c_i`` with ``a_i ~ exp(score(c_i, x_t))``: the weights no longer
      depend on each other. The candidates ``c_i = f(x_i, h_(i-1))`` are still sequential.
    - "values": candidates from the inputs alone, ``f(x_i)``: all steps at once.
    - "keys": keys and values are separate, ``a_i ~ exp(score(K f(x_i), Q x_t))``, and the values
      are ``V f(x_i)``.
    - "heads": several of these in parallel: causal multi-head self-attention on ``f(x)``.

    f is a tanh layer and the score a scaled dot product; the derivation leaves both open.
    """

    def __init__(
        self, d_input: int, d_hidden: int, *, freed: Freed = "heads", n_heads: int = 1
    ) -> None:
        super().__init__()
        if n_heads > 1 and freed != "heads":
            raise UsageError(
                f"several heads are the last step, got {n_heads} with freed={freed!r}",
                hint='choose freed="heads", or one head',
            )
        if d_hidden % n_heads:
            raise UsageError(
                f"{n_heads} heads do not divide d_hidden {d_hidden}", hint="choose other sizes"
            )
        self.freed = freed
        self.n_heads = n_heads
        self.d_head = d_hidden // n_heads
        self.candidate_proj = nn.Linear(d_input, d_hidden)
        self.query_proj = nn.Linear(d_input, d_hidden, bias=False)
        has_keys = freed in ("keys", "heads")
        self.state_proj = nn.Linear(d_hidden, d_hidden, bias=False) if freed == "weights" else None
        self.key_proj = nn.Linear(d_hidden, d_hidden, bias=False) if has_keys else nn.Identity()
        self.value_proj = nn.Linear(d_hidden, d_hidden, bias=False) if has_keys else nn.Identity()

    def forward(self, inputs: Float[Tensor, "batch pos d_input"]) -> FreedOutput:
        """Read whole sequences; each step sees itself and earlier steps."""
        query, candidate = self.query_proj(inputs), self.candidate_proj(inputs)
        if self.state_proj is not None:
            return self._one_by_one(query, candidate, self.state_proj)
        values = candidate.tanh()
        query, key, value = map(
            self._split, (query, self.key_proj(values), self.value_proj(values))
        )  # [batch, head, pos, d_head]
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.d_head)
        mask = causal_mask(inputs.shape[1], device=inputs.device)
        weights = masked_softmax(scores, mask.expand_as(scores))
        return FreedOutput((weights @ value).transpose(1, 2).flatten(2), weights)

    def _one_by_one(
        self,
        query: Float[Tensor, "batch pos d_hidden"],
        candidate: Float[Tensor, "batch pos d_hidden"],
        state_proj: nn.Linear,
    ) -> FreedOutput:
        n = query.shape[1]
        state, values, outputs, rows = torch.zeros_like(query[:, 0]), [], [], []
        for t in range(n):
            values.append((candidate[:, t] + state_proj(state)).tanh())
            past = torch.stack(values, dim=1)  # [batch, key_pos, d_hidden]
            scores = torch.einsum("bkd,bd->bk", past, query[:, t]) / math.sqrt(self.d_head)
            weights = scores.softmax(1)
            state = torch.einsum("bk,bkd->bd", weights, past)
            outputs.append(state)
            rows.append(nn.functional.pad(weights, (0, n - 1 - t)))
        return FreedOutput(torch.stack(outputs, dim=1), torch.stack(rows, dim=1)[:, None])

    def _split(self, x: Float[Tensor, "batch pos d_hidden"]) -> Float[Tensor, "batch head pos d"]:
        return x.unflatten(2, (self.n_heads, self.d_head)).transpose(1, 2)
