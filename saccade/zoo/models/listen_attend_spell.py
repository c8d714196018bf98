"""Listen, Attend and Spell: a pyramidal encoder, and an LSTM decoder with attention.

Chan, Jaitly, Le and Vinyals, 2016 (https://arxiv.org/abs/1508.01211). Unlike CTC its predictions
depend on previous symbols, and it has to learn that the alignment is monotonic: with the mixed
score it sees the previous weights (Chorowski et al., 2015, https://arxiv.org/abs/1506.07503), with
monotonic select it cannot go back (Raffel et al., 2017, https://arxiv.org/abs/1704.00784).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.zoo.attention.attend import Attention, Memory
from saccade.zoo.attention.scores import make_score
from saccade.zoo.attention.select import make_select
from saccade.zoo.cells.cell import select_rows
from saccade.zoo.cells.lstm import LstmCell, LstmState
from saccade.zoo.cells.stacks import Pyramid
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.speech import FrameBatch, Frames


class SpellerState(NamedTuple):
    """State of the speller."""

    cell: LstmState
    context: Float[Tensor, "row d_value"]
    """Context of the last step."""
    weights: Float[Tensor, "row key_pos"]
    """Weights of the last step; initially all on the first position."""


class ListenAttendSpell(nn.Module):
    """``s_t = LSTM(s_(t-1), y_(t-1), c_(t-1))``, ``c_t = attend(s_t, h)``, ``p(y_t | s_t, c_t)``.

    Section 3 of the paper: `Pyramid` is the listener, equations 6 to 8 the speller. The query is
    the state *after* the previous symbol was read; the prediction is a network of one hidden layer.

    Where we differ: one LSTM spells where the paper has two; any score and any select can attend
    where the paper compares by the product of two projections (``score="bilinear"`` is that without
    its nonlinearity); the pyramid's layers have dropout, since there are minutes of speech here and
    2,000 hours in the paper.

    Args:
        score: A name known to `make_score`; "mixed" also sees the weights of the previous step.
        select: A name known to `make_select`.
    """

    def __init__(
        self,
        *,
        d_frame: int,
        n_symbols: int,
        d_hidden: int = 128,
        d_embed: int = 32,
        n_layers: int = 3,
        score: str = "additive",
        select: str = "soft",
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.listener = Pyramid(d_frame, d_hidden, n_layers=n_layers, dropout=dropout)
        d_value = self.listener.d_hidden
        self.attention = Attention(
            make_score(score, d_query=d_hidden, d_key=d_value), make_select(select)
        )
        self.embed = nn.Embedding(n_symbols, d_embed)
        self.speller = LstmCell(d_embed + d_value, d_hidden)
        self.before_output = nn.Linear(d_hidden + d_value, d_hidden)
        self.output = nn.Linear(d_hidden, n_symbols)
        self.dropout = Dropout(dropout)

    def listen(self, source: Frames) -> Memory:
        """Encode the frames and project them to keys."""
        heard = self.listener(source.values, source.mask)
        return self.attention.remember(self.dropout(heard.outputs), mask=heard.mask)

    def begin(self, memory: Memory) -> SpellerState:
        """The initial state, with attention on the first position."""
        n, n_keys, d_value = memory.values.shape
        weights = memory.values.new_zeros(n, n_keys)
        weights[:, 0] = 1.0
        return SpellerState(self.speller.start(n), memory.values.new_zeros(n, d_value), weights)

    def spell(
        self, word: Float[Tensor, "row d_embed"], memory: Memory, state: SpellerState
    ) -> SpellerState:
        """Read one symbol, and attend."""
        said = torch.cat([word, state.context], dim=1)
        hidden, cell = self.speller.step(said, state.cell)
        attended = self.attention(hidden[:, None], memory, previous=state.weights[:, None])
        return SpellerState(cell, attended.context[:, 0], attended.weights[:, 0])

    def predict(
        self, hidden: Float[Tensor, "*at d_hidden"], context: Float[Tensor, "*at d_value"]
    ) -> Float[Tensor, "*at n_symbols"]:
        """Logits of the next symbol."""
        joined = self.before_output(torch.cat([hidden, context], dim=-1)).tanh()
        return self.output(self.dropout(joined))

    def forward(self, batch: FrameBatch) -> Float[Tensor, "token n_symbols"]:
        """Logits at the real positions of ``batch.spelling``, with teacher forcing."""
        memory = self.listen(batch.source)
        spelling = batch.spelling
        state = self.begin(memory)
        states, contexts = [], []
        for word in self.dropout(self.embed(spelling.target_in)).unbind(1):
            state = self.spell(word, memory, state)
            states.append(state.cell.hidden)
            contexts.append(state.context)
        real = spelling.mask
        return self.predict(torch.stack(states, 1)[real], torch.stack(contexts, 1)[real])

    def start(self, source: Frames) -> Started:
        """Encode the whole source."""
        memory = self.listen(source)
        return Started(memory, self.begin(memory))

    def step(self, tokens: Int[Tensor, " row"], memory: Memory, state: SpellerState) -> Stepped:
        """Read a symbol, attend, predict the next one."""
        n = len(memory.keys)
        if len(tokens) > n:
            # Each hypothesis has its own previous weights, so each needs its own copy of the
            # memory.
            sentence = torch.arange(n, device=tokens.device)
            memory = select_rows(memory, sentence.repeat_interleave(len(tokens) // n))
        state = self.spell(self.embed(tokens), memory, state)
        logits = self.predict(state.cell.hidden, state.context)
        return Stepped(logits.log_softmax(-1), state, state.weights)
