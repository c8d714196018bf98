"""Luong's translators: attention after the decoder's step, with four scores.

Luong, Pham and Manning, 2015 (https://arxiv.org/abs/1508.04025). Simpler than Bahdanau's: the
decoder runs first, its new state is the query, and the context goes directly to the prediction.
Attention is *global* (all source words) or *local* (a window around one of them).
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.zoo.attention.attend import Memory
from saccade.zoo.attention.local import AlignedWindow, LocalAttention, PredictedWindow, Window
from saccade.zoo.attention.scores import make_score
from saccade.zoo.cells.stacks import make_stack
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.vocabulary import Padded

LuongScore = Literal["dot", "general", "concat", "location"]
LuongView = Literal["global", "local-m", "local-p"]

# The paper's names, and those of the same scores here.
SCORES = {"dot": "dot", "general": "bilinear", "concat": "additive", "location": "location"}


class LuongState(NamedTuple):
    """State of the decoder."""

    layers: tuple
    """The state of each LSTM."""
    attentional: Float[Tensor, "row d_hidden"]
    """The last attentional vector, fed back with the next word."""
    position: Int[Tensor, " row"]
    """Number of words so far."""


class Attentional(NamedTuple):
    """Attentional vectors and attention weights."""

    vector: Float[Tensor, "batch pos d_hidden"]
    weights: Float[Tensor, "batch pos source_pos"]


def luong_attention(
    score: LuongScore = "general",
    view: LuongView = "global",
    *,
    d_hidden: int,
    reach: int = 10,
    max_length: int = 128,
) -> LocalAttention:
    """One of the paper's attentions, for states of one size.

    Args:
        score: Section 3.1: "dot" ``h . k``, "general" ``h . W k``, "concat" ``v . tanh(W [h; k])``,
            or "location" ``W h``, which does not look at the source at all.
        view: "global", "local-m" (a window that moves with the target position) or "local-p" (one
        around a predicted position).
        reach: Positions of the window on each side.
        max_length: The longest source, for "location".
    """
    windows: dict[str, Window | None] = {
        "global": None,
        "local-m": AlignedWindow(reach=reach),
        "local-p": PredictedWindow(d_query=d_hidden, reach=reach),
    }
    made = make_score(SCORES[score], d_query=d_hidden, d_key=d_hidden, max_length=max_length)
    return LocalAttention(made, windows[view])


class LuongTranslator(nn.Module):
    """``h_t`` from the words, ``c_t`` by attention from h_t, ``softmax(W_s tanh(W_c [c_t; h_t]))``.

    Sections 2 and 3: two stacks of LSTMs, the second initialised with the final states of the
    first; the keys are the top states of the first. ``tanh(W_c [c_t; h_t])`` is the *attentional*
    vector (equation 5). With *input feeding* (section 3.3, ``is_fed``) it goes to the decoder with
    the next word, so that the decoder knows its past attention; then steps are sequential. Without
    it, the decoder runs through torch's kernel and all words attend at once.

    Where we differ: 2 layers of 256 where the paper has 4 of 1000, and one dropout on embeddings,
    between layers and before W_s. The paper reverses its sources; that is an option of the data
    (``is_reversed``), and makes little sense with a window that moves forwards.
    """

    def __init__(
        self,
        *,
        n_source: int,
        n_target: int,
        attention: LocalAttention,
        d_hidden: int = 256,
        n_layers: int = 2,
        dropout: float = 0.3,
        is_fed: bool = True,
    ) -> None:
        super().__init__()
        self.source_embed = nn.Embedding(n_source, d_hidden)
        self.target_embed = nn.Embedding(n_target, d_hidden)
        self.encoder = make_stack("lstm", d_hidden, d_hidden, n_layers=n_layers, dropout=dropout)
        d_input = 2 * d_hidden if is_fed else d_hidden
        self.decoder = make_stack("lstm", d_input, d_hidden, n_layers=n_layers, dropout=dropout)
        self.attention = attention
        self.combine = nn.Linear(2 * d_hidden, d_hidden, bias=False)
        self.output = nn.Linear(d_hidden, n_target)
        self.output.weight = self.target_embed.weight
        self.dropout = Dropout(dropout)
        self.is_fed = is_fed
        for embed in (self.source_embed, self.target_embed):
            nn.init.normal_(embed.weight, std=d_hidden**-0.5)  # tied to the output

    def read(
        self, source: Int[Tensor, "batch source_pos"], mask: Bool[Tensor, "batch source_pos"]
    ) -> Started:
        """Encode the source: its memory, and the state before the first word."""
        words = self.dropout(self.source_embed(source))  # [batch, source_pos, d_hidden]
        states, layers = self.encoder.unroll(words, mask=mask)
        memory = self.attention.remember(self.dropout(states), mask=mask)
        nothing = torch.zeros_like(states[:, 0])
        return Started(memory, LuongState(layers, nothing, mask.new_zeros(len(mask)).long()))

    def attend(
        self,
        hidden: Float[Tensor, "batch pos d_hidden"],
        memory: Memory,
        position: Int[Tensor, "batch pos"],
    ) -> Attentional:
        """The attentional vectors of decoder states."""
        context, weights, *_ = self.attention(hidden, memory, position=position)
        vector = self.combine(torch.cat([context, hidden], dim=-1)).tanh()
        return Attentional(vector, weights)

    def features(self, batch: PairBatch) -> Float[Tensor, "token d_hidden"]:
        """The inputs of ``output`` at the real target positions."""
        memory, state = self.read(batch.source, batch.source_mask)
        words = self.dropout(self.target_embed(batch.target_in))  # [batch, pos, d_hidden]
        position = torch.arange(words.shape[1], device=words.device).expand(words.shape[:2])
        if self.is_fed:
            vectors = self._fed(words, memory, state, position)
        else:
            hidden = self.decoder.unroll(words, state.layers).outputs
            vectors = self.attend(hidden, memory, position).vector
        return self.dropout(vectors[batch.target_mask])

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real target positions, with teacher forcing."""
        return self.output(self.features(batch))

    def _fed(
        self,
        words: Float[Tensor, "batch pos d_hidden"],
        memory: Memory,
        state: LuongState,
        position: Int[Tensor, "batch pos"],
    ) -> Float[Tensor, "batch pos d_hidden"]:
        """Attentional vectors, each fed to the next step."""
        layers, fed, vectors = state.layers, state.attentional, []
        for t, word in enumerate(words.unbind(1)):
            hidden, layers = self.decoder.step(torch.cat([word, fed], dim=-1), layers)
            fed = self.attend(hidden[:, None], memory, position[:, t : t + 1]).vector[:, 0]
            vectors.append(fed)
        return torch.stack(vectors, 1)

    def start(self, source: Padded) -> Started:
        """Read the source."""
        return self.read(source.ids, source.mask)

    def step(self, tokens: Int[Tensor, " row"], memory: Memory, state: LuongState) -> Stepped:
        """Predict what follows ``tokens``."""
        word = self.target_embed(tokens)
        inputs = torch.cat([word, state.attentional], dim=-1) if self.is_fed else word
        hidden, layers = self.decoder.step(inputs, state.layers)
        beams = (len(memory.keys), -1)  # hypotheses of a sentence are queries to one memory
        query, position = hidden.unflatten(0, beams), state.position.unflatten(0, beams)
        found, weights = self.attend(query, memory, position)
        vector = found.flatten(0, 1)
        log_probs = self.output(vector).log_softmax(-1)
        state = LuongState(layers, vector, state.position + 1)
        return Stepped(log_probs, state, weights.flatten(0, 1))
