"""Bahdanau's translator: a bidirectional GRU encodes, a GRU with attention decodes.

Bahdanau, Cho and Bengio, 2015 (https://arxiv.org/abs/1409.0473). Each target word takes three
steps: *attend* to the source with the state so far, *update* the state with the previous word and
the context, *predict* the next word from all three.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.zoo.attention.attend import Attention, Memory
from saccade.zoo.attention.scores import AdditiveScore
from saccade.zoo.attention.select import SoftSelect
from saccade.zoo.cells.cell import weights_of
from saccade.zoo.cells.gru import GruCell
from saccade.zoo.cells.stacks import Bidirectional
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.fast.forms import is_fast
from saccade.zoo.fast.recurrence import AttendedStates, AttendingGruWeights, attending_gru
from saccade.zoo.fast.soft_attention import StepMemory
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.vocabulary import Padded

DeepOutput = Literal["maxout", "tanh"]


class Encoded(NamedTuple):
    """An encoded source."""

    memory: Memory
    """Keys for the score; the values are the annotations h_j, both directions concatenated."""
    hidden: Float[Tensor, "batch d_hidden"]
    """The decoder's state before the first word."""


class BahdanauTranslator(nn.Module):
    """``attend: c_t = sum_j a_tj h_j``, ``update: s_t``, ``predict: p(y_t | s_t, y_(t-1), c_t)``.

    Section 3 and appendix A of the paper:

    - *Encode.* The annotation h_j of source word j is the state of a forward and of a backward GRU
      there (equation 7), and ``s_0 = tanh(W_s h_1)`` with the backward one's last.
    - *Attend.* ``e_tj = v . tanh(W s_(t-1) + U h_j)``, ``a_t = softmax(e_t)`` (equations 5 and 6).
      The query is the state *before* the word; U h_j is computed once per sentence.
    - *Update.* A GRU from s_(t-1), the previous word and c_t.
    - *Predict.* A deep output: ``t = maxout(U_o s_t + V_o E y_(t-1) + C_o c_t)``, then
      ``softmax(W_o t)``.

    Where we differ:

    - The paper's formula of the deep output has s_(t-1), its text has s_t; we take s_t.
    - The reset gate is applied after its product, as in torch's kernel: see `GruCell`.
    - W_o is tied to the target's embeddings (Press and Wolf, 2017,
      https://arxiv.org/abs/1608.05859), and there is dropout on embeddings, annotations and before
      W_o: Multi30k has a thousandth of the paper's words. ``output="tanh"`` puts a tanh layer in
      place of maxout.
    - 256 units where the paper has 1000, and an embedding dimension of 256 where it has 620.

    `step` is one word, as above. In training all words are known: `features` runs attend and update
    in one loop (`attend_and_update`), and what does not depend on the previous step, the words'
    part of the gates and the whole prediction, outside of it.
    """

    def __init__(
        self,
        *,
        n_source: int,
        n_target: int,
        d_embed: int = 256,
        d_hidden: int = 256,
        dropout: float = 0.3,
        output: DeepOutput = "maxout",
    ) -> None:
        super().__init__()
        d_read = 2 * d_hidden
        self.source_embed = nn.Embedding(n_source, d_embed)
        self.target_embed = nn.Embedding(n_target, d_embed)
        self.encoder = Bidirectional(GruCell(d_embed, d_hidden), GruCell(d_embed, d_hidden))
        self.first = nn.Linear(d_hidden, d_hidden)
        score = AdditiveScore(d_query=d_hidden, d_key=d_read, d_hidden=d_hidden)
        self.attention = Attention(score, SoftSelect())
        self.decoder = GruCell(d_embed, d_hidden)
        self.context_proj = nn.Linear(d_read, 3 * d_hidden, bias=False)
        self.is_maxout = output == "maxout"
        n_units = 2 * d_embed if self.is_maxout else d_embed
        self.before_output = nn.Linear(d_hidden + d_embed + d_read, n_units)
        self.output = nn.Linear(d_embed, n_target)
        self.output.weight = self.target_embed.weight
        self.dropout = Dropout(dropout)
        for embed in (self.source_embed, self.target_embed):
            nn.init.normal_(embed.weight, std=d_embed**-0.5)  # tied to the output

    def read(
        self, source: Int[Tensor, "batch source_pos"], mask: Bool[Tensor, "batch source_pos"]
    ) -> Encoded:
        """Compute the annotations of the source and project them to keys."""
        words = self.dropout(self.source_embed(source))  # [batch, source_pos, d_embed]
        annotations, last = self.encoder.unroll(words, mask=mask)
        annotations = self.dropout(annotations)  # [batch, source_pos, d_read]
        memory = self.attention.remember(annotations, mask=mask)
        return Encoded(memory, torch.tanh(self.first(last.backward)))

    def deep_output(
        self,
        hidden: Float[Tensor, "token d_hidden"],
        word: Float[Tensor, "token d_embed"],
        context: Float[Tensor, "token d_read"],
    ) -> Float[Tensor, "token d_embed"]:
        """The features for the next word: t in the paper."""
        units = self.before_output(torch.cat([hidden, word, context], dim=-1))
        return torch.maximum(*units.chunk(2, dim=-1)) if self.is_maxout else units.tanh()

    def attend_and_update(
        self,
        words: Float[Tensor, "batch pos d_embed"],
        memory: Memory,
        hidden: Float[Tensor, "batch d_hidden"],
    ) -> AttendedStates:
        """For each word: attend with the previous state, then update from word and context."""
        projected = self.decoder.project(words.transpose(0, 1))  # [pos, batch, d_gates]
        if is_fast():
            return attending_gru(projected, StepMemory(*memory), hidden, weights=self._weights())
        states, contexts = [], []
        for word in projected:
            context = self.attention(hidden[:, None], memory).context[:, 0]
            hidden = self.decoder.advance(word + self.context_proj(context), hidden).output
            states.append(hidden)
            contexts.append(context)
        return AttendedStates(torch.stack(states, dim=1), torch.stack(contexts, dim=1))

    def _weights(self) -> AttendingGruWeights:
        score, gates = self.attention.score, weights_of(self.decoder.kernel)
        assert isinstance(score, AdditiveScore)
        return AttendingGruWeights(
            of_state=gates.of_state,
            state_bias=gates.state_bias,
            of_context=self.context_proj.weight,
            of_query=score.query_proj.weight,
            v=score.score_proj.weight,
        )

    def features(self, batch: PairBatch) -> Float[Tensor, "token d_embed"]:
        """The inputs of ``output`` at the real target positions."""
        memory, hidden = self.read(batch.source, batch.source_mask)
        words = self.dropout(self.target_embed(batch.target_in))  # [batch, pos, d_embed]
        states, contexts = self.attend_and_update(words, memory, hidden)
        real = batch.target_mask
        return self.dropout(self.deep_output(states[real], words[real], contexts[real]))

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real target positions, with teacher forcing."""
        return self.output(self.features(batch))

    def start(self, source: Padded) -> Started:
        """Read the source."""
        return Started(*self.read(source.ids, source.mask))

    def step(
        self, tokens: Int[Tensor, " row"], memory: Memory, state: Float[Tensor, "row d_hidden"]
    ) -> Stepped:
        """Attend, update, predict what follows ``tokens``."""
        word = self.target_embed(tokens)
        query = state.unflatten(0, (len(memory.keys), -1))  # [sentence, beam, d_hidden]
        attended = self.attention(query, memory)
        context = attended.context.flatten(0, 1)  # [row, d_read]
        gates = self.decoder.project(word) + self.context_proj(context)
        hidden = self.decoder.advance(gates, state).output
        logits = self.output(self.deep_output(hidden, word, context))
        return Stepped(logits.log_softmax(-1), hidden, attended.weights.flatten(0, 1))
