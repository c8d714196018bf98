"""Learning to Execute: an LSTM reads a program by characters and predicts its output."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.stacks import make_stack
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.models.sequence_reader import influence
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.vocabulary import Padded


class ProgramExecutor(nn.Module):
    """One stack of LSTMs reads the program, then predicts what it prints.

    Zaremba and Sutskever, 2014 (https://arxiv.org/abs/1410.4615), sections 2 and 4: there is no
    separate encoder and decoder, no attention, and only the state to compute with. The same weights
    read and write; the loss is on the output only.

    The paper concatenates programs and carries the state from one to the next; here each starts
    from zeros, since programs are independent.

    >>> model = ProgramExecutor(d_vocab=43, d_embed=5, d_hidden=7)
    >>> state = model.start(Padded(torch.tensor([[4, 5, 2]]), torch.tensor([[True] * 3]))).state
    >>> model.step(torch.tensor([1]), None, state).log_probs.shape
    torch.Size([1, 43])
    """

    def __init__(
        self,
        *,
        d_vocab: int,
        d_embed: int,
        d_hidden: int,
        n_layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.embed = nn.Embedding(d_vocab, d_embed)
        self.cell = make_stack("lstm", d_embed, d_hidden, n_layers=n_layers, dropout=dropout)
        self.output = nn.Linear(d_hidden, d_vocab)

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits of the output, each given all characters before it."""
        state = self._read(self.embed(batch.source), batch.source_mask)
        written = self.cell.unroll(self.embed(batch.target_in), state).outputs
        shown = functional.dropout(written[batch.target_mask], self.dropout, self.training)
        return self.output(shown)  # [token, d_vocab]

    def start(self, source: Padded) -> Started:
        """Read the programs; only the state is kept."""
        return Started(None, self._read(self.embed(source.ids), source.mask))

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: tuple) -> Stepped:
        """Predict one character."""
        del memory  # there is none
        output, state = self.cell.step(self.embed(tokens), state)
        return Stepped(self.output(output).log_softmax(-1), state)

    def _read(
        self, embedded: Float[Tensor, "batch pos d_embed"], mask: Bool[Tensor, "batch pos"]
    ) -> tuple:
        return self.cell.unroll(embedded, mask=mask).state

    def influence_on(self, batch: PairBatch) -> Float[Tensor, "step source_pos"]:
        """The influence of each character of one program on each output character."""
        with torch.enable_grad():
            embedded = self.embed(batch.source).detach().requires_grad_()
            state = self._read(embedded, batch.source_mask)
            written = self.cell.unroll(self.embed(batch.target_in), state).outputs[0]
            log_probs = self.output(written).log_softmax(-1)
            return influence(log_probs.gather(1, batch.target_out[0, :, None])[:, 0], embedded)[
                :, 0
            ]
