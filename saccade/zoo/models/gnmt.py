"""GNMT: deep LSTM stacks with residual connections, and attention from the lowest layer.

Wu et al., 2016 (https://arxiv.org/abs/1609.08144), section 3 and figure 1. The design is for speed:
only the lowest encoder layer is bidirectional and only the lowest decoder layer queries the
attention, so that layers can run in parallel. Here the same split lets all upper layers run through
torch's fused kernel.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.zoo.attention.attend import Attention, Memory
from saccade.zoo.attention.scores import AdditiveScore
from saccade.zoo.attention.select import SoftSelect
from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.cells.stacks import Bidirectional, make_stack
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.vocabulary import Padded

RESIDUAL_FROM = 2  # section 3.1: from the third layer on a layer's input is added to its output


class GnmtState(NamedTuple):
    """State of the decoder."""

    bottom: Any
    upper: tuple


class BottomOut(NamedTuple):
    """Output of the lowest decoder layer."""

    hidden: Float[Tensor, "batch pos d_model"]
    context: Float[Tensor, "batch pos d_model"]


class Gnmt(nn.Module):
    """Encoder: one bidirectional layer, the rest forward. Decoder: all layers read the context.

    Equations 4 to 6. The query is the lowest decoder layer's output at the previous step, ``a_t =
    attend(h_(t-1), encoder)``, and every decoder layer reads ``[its input ; a_t]`` at step t. From
    the third layer on, input and output of a layer are added (equation 6), without which, the paper
    finds, stacks of more than four or five layers do not train.

    The paper has 8 + 8 layers of 1024; Multi30k needs fewer and narrower ones. The decoder's
    initial state is zero: the paper does not specify it, and attention provides the source.
    """

    def __init__(
        self,
        *,
        n_source: int,
        n_target: int,
        d_model: int = 256,
        n_layers: int = 4,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.source_embed = nn.Embedding(n_source, d_model)
        self.target_embed = nn.Embedding(n_target, d_model)
        half = d_model // 2  # per direction, so that the output is as wide as that of other layers
        self.both_ways = Bidirectional(LstmCell(d_model, half), LstmCell(d_model, d_model - half))
        self.encoder = make_stack(
            "lstm",
            d_model,
            d_model,
            n_layers=n_layers - 1,
            dropout=dropout,
            residual_from=RESIDUAL_FROM - 1,
        )
        score = AdditiveScore(d_query=d_model, d_key=d_model, d_hidden=d_model)
        self.attention = Attention(score, SoftSelect())
        self.bottom = LstmCell(2 * d_model, d_model)
        self.upper = nn.ModuleList(LstmCell(2 * d_model, d_model) for _ in range(n_layers - 1))
        self.output = nn.Linear(d_model, n_target)
        self.dropout = Dropout(dropout)

    def read(
        self, source: Int[Tensor, "batch source_pos"], mask: Bool[Tensor, "batch source_pos"]
    ) -> Memory:
        """The outputs of the highest encoder layer as a memory."""
        words = self.dropout(self.source_embed(source))  # [batch, source_pos, d_model]
        below = self.both_ways.unroll(words, mask=mask).outputs
        outputs = self.encoder.unroll(self.dropout(below), mask=mask).outputs
        return self.attention.remember(outputs, mask=mask)

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real target positions, with teacher forcing."""
        memory = self.read(batch.source, batch.source_mask)
        words = self.dropout(self.target_embed(batch.target_in))  # [batch, pos, d_model]
        x, context = self._bottom(words, memory)  # both [batch, pos, d_model]
        for layer, cell in enumerate(self._upper_cells(), start=1):
            inputs = torch.cat([self.dropout(x), context], dim=-1)
            y = cell.unroll(inputs).outputs
            x = x + y if layer >= RESIDUAL_FROM else y
        return self.output(self.dropout(x[batch.target_mask]))

    def _bottom(self, words: Float[Tensor, "batch pos d_model"], memory: Memory) -> BottomOut:
        """Attend and step, word by word: the only sequential part."""
        state = self.bottom.start(len(words))
        hidden, context = [], []
        for word in words.unbind(1):
            attended = self.attention(state.hidden[:, None], memory)
            context.append(attended.context[:, 0])
            output, state = self.bottom.step(torch.cat([word, context[-1]], dim=-1), state)
            hidden.append(output)
        return BottomOut(torch.stack(hidden, dim=1), torch.stack(context, dim=1))

    def _upper_cells(self) -> list[LstmCell]:
        return [cell for cell in self.upper if isinstance(cell, LstmCell)]

    def start(self, source: Padded) -> Started:
        """Read the source."""
        memory = self.read(source.ids, source.mask)
        n = len(source.ids)
        upper = tuple(cell.start(n) for cell in self._upper_cells())
        return Started(memory, GnmtState(self.bottom.start(n), upper))

    def step(self, tokens: Int[Tensor, " row"], memory: Memory, state: GnmtState) -> Stepped:
        """Predict what follows ``tokens``."""
        query = state.bottom.hidden.unflatten(0, (len(memory.mask), -1))  # [sentence, beam, d]
        attended = self.attention(query, memory)
        context = attended.context.flatten(0, 1)  # [row, d_model]
        word = self.target_embed(tokens)
        x, bottom = self.bottom.step(torch.cat([word, context], dim=-1), state.bottom)
        states = []
        for layer, cell in enumerate(self._upper_cells(), start=1):
            y, new = cell.step(torch.cat([x, context], dim=-1), state.upper[layer - 1])
            x = x + y if layer >= RESIDUAL_FROM else y
            states.append(new)
        return Stepped(
            log_probs=self.output(x).log_softmax(-1),
            state=GnmtState(bottom, tuple(states)),
            weights=attended.weights.flatten(0, 1),
        )
