"""The Transformer as a translator.

Vaswani et al., 2017 (https://arxiv.org/abs/1706.03762). All three kinds of attention can be
inspected, head by head: encoder self-attention, decoder self-attention, and cross attention.

Where we differ:

- Norms are optionally before each sub-layer (``is_pre_norm``; Xiong et al., 2020,
  https://arxiv.org/abs/2002.04745), which trains faster at first and needs less warm-up. The paper
  has them after the sum.
- Dropout is on sub-layer outputs and embeddings, as in section 5.4, and not on attention weights.
- Positions may be learnt. Embeddings may be tied in part or not at all (section 3.4 ties all).
- Logits are computed at real target positions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.attention.multi_head import (
    KeysValues,
    LearnedPositions,
    MultiHeadAttention,
    sinusoidal_positions,
)
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.vocabulary import Padded

Ties = Literal["all", "target", "none"]
Positions = Literal["sinusoidal", "learned"]
MAX_LENGTH = 512  # of learnt positions; no sentence of Multi30k has a quarter of it


class Looks(NamedTuple):
    """Attention weights of all heads and layers; rows sum to one, padding has weight zero."""

    source: Float[Tensor, "batch layer head source_pos source_pos"]
    """Encoder self-attention."""
    past: Float[Tensor, "batch layer head pos pos"]
    """Decoder self-attention."""
    cross: Float[Tensor, "batch layer head pos source_pos"]
    """Cross attention."""


class SourceMemory(NamedTuple):
    """The source's keys and values for each decoder layer."""

    layers: tuple[KeysValues, ...]
    mask: Bool[Tensor, "sentence source_pos"]


class Residual(nn.Module):
    """Residual connection: ``norm(x + dropout(f(x)))`` or ``x + dropout(f(norm(x)))``.

    Section 5.4 of the paper, and figure 1 of Xiong et al.
    """

    def __init__(self, d_model: int, *, dropout: float, is_pre_norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)
        self.is_pre_norm = is_pre_norm

    def enter(self, x: Float[Tensor, "*at d_model"]) -> Float[Tensor, "*at d_model"]:
        """The input of the sub-layer."""
        return self.norm(x) if self.is_pre_norm else x

    def leave(
        self, x: Float[Tensor, "*at d_model"], found: Float[Tensor, "*at d_model"]
    ) -> Float[Tensor, "*at d_model"]:
        """The sum of input and sub-layer output."""
        x = x + self.dropout(found)
        return x if self.is_pre_norm else self.norm(x)


class FeedForward(nn.Sequential):
    """``max(0, x W1 + b1) W2 + b2`` at each position: equation 2."""

    def __init__(self, d_model: int, d_hidden: int) -> None:
        super().__init__(nn.Linear(d_model, d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_model))


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network."""

    def __init__(
        self, d_model: int, n_heads: int, *, d_hidden: int, dropout: float, is_pre_norm: bool
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, n_heads)
        self.feed_forward = FeedForward(d_model, d_hidden)
        self.around_attention, self.around_feed_forward = (
            Residual(d_model, dropout=dropout, is_pre_norm=is_pre_norm) for _ in range(2)
        )

    def forward(
        self,
        x: Float[Tensor, "batch source_pos d_model"],
        mask: Bool[Tensor, "batch 1 source_pos"],
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The next layer's input, and the weights if requested."""
        query = self.around_attention.enter(x)
        attended = self.attention(query, query, mask=mask, need_weights=need_weights)
        x = self.around_attention.leave(x, attended.context)
        found = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, found), attended.weights


class DecoderLayer(nn.Module):
    """Causal self-attention, cross attention, then a feed-forward network.

    `forward` takes a whole target, `step` one token of it; both compute the same.
    """

    def __init__(
        self, d_model: int, n_heads: int, *, d_hidden: int, dropout: float, is_pre_norm: bool
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, n_heads)
        self.cross = MultiHeadAttention(d_model, n_heads)
        self.feed_forward = FeedForward(d_model, d_hidden)
        self.around_attention, self.around_cross, self.around_feed_forward = (
            Residual(d_model, dropout=dropout, is_pre_norm=is_pre_norm) for _ in range(3)
        )

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        memory: Float[Tensor, "batch source_pos d_model"],
        mask: Bool[Tensor, "batch 1 source_pos"],
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The next layer's input, and the weights of both attentions if requested."""
        # Padding is after all real positions, so the causal mask hides it, too.
        query = self.around_attention.enter(x)
        past = self.attention(query, query, is_causal=True, need_weights=need_weights)
        x = self.around_attention.leave(x, past.context)
        query = self.around_cross.enter(x)
        cross = self.cross(query, memory, mask=mask, need_weights=need_weights)
        x = self.around_cross.leave(x, cross.context)
        found = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, found), past.weights, cross.weights

    def step(
        self,
        x: Float[Tensor, "row 1 d_model"],
        past: KeysValues,
        memory: KeysValues,
        mask: Bool[Tensor, "sentence 1 source_pos"],
    ) -> tuple[Tensor, KeysValues]:
        """The same for one token per row, with earlier keys and values cached."""
        query = self.around_attention.enter(x)
        past = past.append(self.attention.project(query))
        x = self.around_attention.leave(x, self.attention(query, past).context)
        # All hypotheses of a sentence are queries to one memory.
        query = self.around_cross.enter(x).view(len(mask), -1, x.shape[-1])  # [sentence, beam, ...
        x = self.around_cross.leave(x, self.cross(query, memory, mask=mask).context.view_as(x))
        found = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, found), past


class Transformer(nn.Module):
    """A translator based on attention alone.

    >>> model = Transformer(n_source=11, n_target=13, d_model=8, n_layers=2, n_heads=2, d_hidden=16)
    >>> source = Padded(torch.tensor([[4, 5, 2]]), torch.ones(1, 3, dtype=torch.bool))
    >>> started = model.eval().start(source)
    >>> model.step(torch.tensor([1]), *started).log_probs.exp().sum().round()
    tensor(1., grad_fn=...)
    """

    def __init__(  # noqa: PLR0913  plain sizes, each with a name
        self,
        *,
        n_source: int,
        n_target: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        d_hidden: int,
        dropout: float = 0.0,
        is_pre_norm: bool = True,
        positions: Positions = "sinusoidal",
        ties: Ties = "target",
    ) -> None:
        """Set up.

        Args:
            ties: Which embeddings are tied to the output's weights: the target's, or all, for which
                both sides must share a vocabulary.
        """
        super().__init__()
        if ties == "all" and n_source != n_target:
            raise UsageError(
                f"embeddings cannot all be shared by vocabularies of {n_source} and {n_target}",
                hint="share a vocabulary (is_joint=true), or share less (ties=target)",
            )
        self.target_embedding = _embedding(n_target, d_model)
        self.source_embedding = (
            self.target_embedding if ties == "all" else _embedding(n_source, d_model)
        )
        self.output = nn.Linear(d_model, n_target, bias=False)
        if ties == "none":
            nn.init.normal_(self.output.weight, std=d_model**-0.5)
        else:
            self.output.weight = self.target_embedding.weight
        self.positions = (
            LearnedPositions(max_length=MAX_LENGTH, d_model=d_model)
            if positions == "learned"
            else None
        )
        self.dropout = Dropout(dropout)
        sizes = {"d_hidden": d_hidden, "dropout": dropout, "is_pre_norm": is_pre_norm}
        self.encoder = nn.ModuleList(
            EncoderLayer(d_model, n_heads, **sizes) for _ in range(n_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(d_model, n_heads, **sizes) for _ in range(n_layers)
        )
        # With pre-norm, the last sum still needs a norm.
        self.source_norm, self.target_norm = (
            nn.LayerNorm(d_model) if is_pre_norm else nn.Identity() for _ in range(2)
        )

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real target positions, with teacher forcing."""
        x = self._embedded(self.source_embedding, batch.source)
        mask = batch.source_mask[:, None]  # [batch, 1, source_pos]
        for layer in self.encoder:
            x, _ = layer(x, mask)
        memory = self.source_norm(x)  # [batch, source_pos, d_model]
        x = self._embedded(self.target_embedding, batch.target_in)
        for layer in self.decoder:
            x, _, _ = layer(x, memory, mask)
        return self.output(self.target_norm(x[batch.target_mask]))

    def start(self, source: Padded) -> Started:
        """Encode the source; its keys and values are computed once for all steps."""
        x, mask = self._embedded(self.source_embedding, source.ids), source.mask[:, None]
        for layer in self.encoder:
            x, _ = layer(x, mask)
        memory = self.source_norm(x)
        layers = tuple(layer.cross.project(memory) for layer in self._decoder)
        nothing = tuple(KeysValues(*(each[:, :, :0] for each in one)) for one in layers)
        return Started(SourceMemory(layers, source.mask), nothing)

    def step(
        self, tokens: Int[Tensor, " row"], memory: SourceMemory, state: tuple[KeysValues, ...]
    ) -> Stepped:
        """One more token. No weights are returned: there are many, and `look` has them all."""
        at = state[0].keys.shape[2]
        x = self._embedded(self.target_embedding, tokens[:, None], start=at)  # [row, 1, d_model]
        mask, grown = memory.mask[:, None], []
        for layer, past, source in zip(self._decoder, state, memory.layers, strict=True):
            x, more = layer.step(x, past, source, mask)
            grown.append(more)
        logits = self.output(self.target_norm(x[:, 0]))  # [row, d_vocab]
        return Stepped(logits.log_softmax(-1), tuple(grown))

    def look(self, source: Padded, target_in: Int[Tensor, "batch pos"]) -> Looks:
        """The weights of all heads for a given target, by the explicit form of attention."""
        looks: tuple[list[Tensor], ...] = ([], [], [])
        x, mask = self._embedded(self.source_embedding, source.ids), source.mask[:, None]
        for layer in self.encoder:
            x, weights = layer(x, mask, need_weights=True)
            looks[0].append(weights)
        memory = self.source_norm(x)
        x = self._embedded(self.target_embedding, target_in)
        for layer in self.decoder:
            x, *both = layer(x, memory, mask, need_weights=True)
            for kind, weights in zip(looks[1:], both, strict=True):
                kind.append(weights)
        return Looks(*(torch.stack(layers, dim=1) for layers in looks))

    @property
    def _decoder(self) -> list[DecoderLayer]:
        """The layers with their type, which a module list does not keep."""
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    def _embedded(
        self, table: nn.Embedding, ids: Int[Tensor, "batch pos"], *, start: int = 0
    ) -> Float[Tensor, "batch pos d_model"]:
        """Embeddings plus positions: sections 3.4 and 3.5."""
        n, d_model = ids.shape[1], table.embedding_dim
        if self.positions is None:
            places = sinusoidal_positions(start + n, d_model, device=ids.device)[start:]
        else:
            places = self.positions(n, start=start)
        return self.dropout(table(ids) * sqrt(d_model) + places)


def _embedding(n: int, d_model: int) -> nn.Embedding:
    table = nn.Embedding(n, d_model)
    # So that inputs, which are scaled up, and logits both start with a variance of about one.
    nn.init.normal_(table.weight, std=d_model**-0.5)
    return table


# A Transformer's three kinds of attention as traces, every head a view.


def head_traces(
    looks: Looks, *, source: Sequence[str], read: Sequence[str], said: Sequence[str], title: str
) -> list[Trace]:
    """Traces of one sentence: cross attention, decoder and encoder self-attention.

    Heads are named ``layer.head``.

    Args:
        looks: Of a batch of one.
        source: A label for each position of the source.
        read: A label for each input token of the decoder, BOS first.
        said: A label for each target token, EOS last.
    """
    kinds = (
        ("cross-attention", said, source, looks.cross),
        ("past-attention", said, read, looks.past),
        ("source-attention", source, source, looks.source),
    )
    return [
        Trace(
            kind=kind,
            steps=tuple(steps),
            memory=tuple(memory),
            weights=weights[0].flatten(0, 1),  # [layer * head, step, key_pos]
            views=_names(weights),
            title=title,
        )
        for kind, steps, memory, weights in kinds
    ]


def _names(weights: Float[Tensor, "batch layer head query_pos key_pos"]) -> tuple[str, ...]:
    n_layers, n_heads = weights.shape[1:3]
    return tuple(f"{layer}.{head}" for layer in range(n_layers) for head in range(n_heads))
