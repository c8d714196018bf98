"""Multi-head attention and position encodings."""

import math
from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.attention.masks import causal_mask, masked_softmax

# Positions as vectors to add to tokens: attention alone does not see order.

# The longest wavelength is 2 pi times this: Vaswani et al., section 3.5.
LONGEST = 10000.0


def sinusoidal_positions(
    n: int, d_model: int, *, device: torch.device | None = None
) -> Float[Tensor, "pos d_model"]:
    """Sines and cosines of the position, at wavelengths in geometric progression.

    Vaswani et al., 2017 (https://arxiv.org/abs/1706.03762), section 3.5:
    ``sin(pos / 10000^(2i/d))`` in column 2i, the cosine in column 2i + 1.

    >>> sinusoidal_positions(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    even = torch.arange(0, d_model, 2, device=device)
    rate = torch.exp(even * (-math.log(LONGEST) / d_model))
    angle = torch.arange(n, device=device)[:, None] * rate  # [pos, d_model / 2]
    # An odd d_model leaves the last cosine out.
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :d_model]


class LearnedPositions(nn.Module):
    """A learnt vector for each position.

    Gehring et al., 2017 (https://arxiv.org/abs/1705.03122), section 3.1; Vaswani et al. found them
    as good as the sinusoidal ones (table 3, row E), but they end at ``max_length``.
    """

    def __init__(self, *, max_length: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.weight, std=0.02)  # as in GPT-2 and BERT

    def forward(self, n: int, *, start: int = 0) -> Float[Tensor, "pos d_model"]:
        """The vectors of positions ``start`` to ``start + n``."""
        max_length = len(self.weight)
        if start + n > max_length:
            raise UsageError(
                f"positions are learnt up to {max_length}, got {start + n}",
                hint="shorten the text, or train with a larger max_length",
            )
        return self.weight[start : start + n]


class KeysValues(NamedTuple):
    """Output of `MultiHeadAttention.project`, for many queries or a growing text (a KV cache)."""

    keys: Float[Tensor, "batch head key_pos d_head"]
    values: Float[Tensor, "batch head key_pos d_head"]

    def append(self, newer: "KeysValues") -> "KeysValues":
        """The same with new positions appended, as a decoder needs at each step."""
        return KeysValues(
            torch.cat([self.keys, newer.keys], 2), torch.cat([self.values, newer.values], 2)
        )


class MultiHeadAttended(NamedTuple):
    """Context and the weights of each head."""

    context: Float[Tensor, "batch query_pos d_model"]
    weights: Float[Tensor, "batch head query_pos key_pos"] | None
    """Before dropout; None unless asked for."""


class MultiHeadAttention(nn.Module):
    """``concat_h(softmax(Q_h K_h^T / sqrt(d_head)) V_h) W_O``.

    Vaswani et al., 2017 (https://arxiv.org/abs/1706.03762), section 3.2. Self-attention when query
    and memory are the same tensor, cross attention when not. Unlike the paper's equation, and like
    nearly all code, the projections have biases. Parameters are named and initialised as those of
    `torch.nn.MultiheadAttention`, whose state it can load; the polarity of its mask is the
    opposite. torch's fused kernel is used unless weights are requested, which it does not return.

    >>> attention = MultiHeadAttention(6, 2)
    >>> x = torch.ones(1, 3, 6)
    >>> attention(x, x, is_causal=True, need_weights=True).weights[0, 0]
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]], grad_fn=...)
    """

    def __init__(self, d_model: int, n_heads: int, *, dropout: float = 0.0) -> None:
        """Set up.

        Args:
            dropout: Dropout rate of the weights.
        """
        super().__init__()
        if d_model % n_heads:
            raise UsageError(
                f"d_model must be a multiple of n_heads, got {d_model} and {n_heads}",
                hint=f"with {n_heads} heads take e.g. d_model={n_heads * (d_model // n_heads + 1)}",
            )
        self.n_heads = n_heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * d_model, d_model))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d_model))
        self.out_proj = nn.Linear(d_model, d_model)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def project(self, memory: Float[Tensor, "batch key_pos d_model"]) -> KeysValues:
        """Keys and values of every head, for more than one call."""
        keys, values = self._projected(memory, first=1)
        return KeysValues(keys, values)

    def forward(
        self,
        query: Float[Tensor, "batch query_pos d_model"],
        memory: Float[Tensor, "batch key_pos d_model"] | KeysValues,
        *,
        mask: Bool[Tensor, "#batch #query_pos key_pos"] | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> MultiHeadAttended:
        """Read the memory for every query.

        Args:
            mask: True = may attend. A query that may attend to nothing reads zeros.
            is_causal: Each query attends only to its own position and earlier ones; the last query
                is at the last key.
        """
        queries, keys, values = self._heads(query, memory)
        dropout = self.dropout if self.training else 0.0
        # The kernel's causal path skips half of the work, but takes no other mask.
        is_plain = mask is None and not need_weights and query.shape[1] == keys.shape[2]
        if is_causal and not is_plain:
            mask = _causal(mask, queries.shape[2], keys.shape[2], device=query.device)
        wide = None if mask is None else mask[:, None]  # [#batch, 1, #query_pos, key_pos]
        if need_weights:
            scores = (queries / sqrt(queries.shape[-1])) @ keys.mT  # [batch, head, query, key]
            weights = scores.softmax(-1) if wide is None else masked_softmax(scores, wide)
            read = functional.dropout(weights, dropout) @ values
        else:
            weights = None
            read = functional.scaled_dot_product_attention(
                queries, keys, values, wide, dropout, is_causal=is_causal and is_plain
            )
        context = self.out_proj(read.transpose(1, 2).flatten(2))  # [batch, query_pos, d_model]
        if mask is not None:
            # A query that may attend to nothing reads zeros; the bias must not fill them.
            context = context * mask.any(-1, keepdim=True)
        return MultiHeadAttended(context, weights)

    def _heads(self, query: Tensor, memory: Tensor | KeysValues) -> tuple[Tensor, Tensor, Tensor]:
        if query is memory:
            queries, keys, values = self._projected(query)
        else:
            (queries,) = self._projected(query, last=1)
            keys, values = self.project(memory) if isinstance(memory, Tensor) else memory
        return queries, keys, values

    def _projected(self, x: Tensor, *, first: int = 0, last: int = 3) -> list[Tensor]:
        """A range of (queries, keys, values) of every head, in one product."""
        d_model = x.shape[-1]
        rows = slice(first * d_model, last * d_model)
        flat = functional.linear(x, self.in_proj_weight[rows], self.in_proj_bias[rows])
        parts = flat.unflatten(-1, (last - first, self.n_heads, -1))
        return [part.transpose(1, 2) for part in parts.unbind(2)]  # [batch, head, pos, d_head]


def _causal(mask: Tensor | None, n_queries: int, n_keys: int, *, device: torch.device) -> Tensor:
    """The causal mask of the last queries, combined with the given mask."""
    assert n_queries <= n_keys, f"{n_queries} queries cannot all stand at one of {n_keys} keys"
    causal = causal_mask(n_keys, device)[None, n_keys - n_queries :]
    return causal if mask is None else causal & mask
