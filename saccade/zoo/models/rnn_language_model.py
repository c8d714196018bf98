"""The recurrent language model, of words or of characters."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.cell import Cell
from saccade.zoo.cells.lstm import LockedDropout
from saccade.zoo.cells.stacks import make_cell
from saccade.zoo.models.language_model import LanguageModel, Predicted
from saccade.zoo.models.sequence_reader import influence


class RnnLanguageModel(LanguageModel):
    """Predict the next symbol from a state that has read all earlier ones.

    Mikolov et al., 2010 ("Recurrent neural network based language model") with words; Sutskever et
    al., 2011 ("Generating text with recurrent neural networks") with characters. Layers of cells on
    an embedding, regularised as by Zaremba et al., 2014 (https://arxiv.org/abs/1409.2329): dropout
    between layers, never between steps.

    Two things are newer. The dropout mask is constant over a segment of text (Gal and
    Ghahramani, 2016, https://arxiv.org/abs/1512.05287). And with ``is_tied`` the output's weights
    are the embedding's (Press and Wolf, 2017, https://arxiv.org/abs/1608.05859), for vocabularies
    of words; a linear map connects them if their sizes differ.

    Any cell works; whole segments run through torch's kernel if it has one.

    Args:
        dropout: Dropout rate of the embeddings and of each layer's outputs.

    >>> model = RnnLanguageModel(d_vocab=7, d_embed=3, d_hidden=5)
    >>> model(torch.tensor([[4, 5, 6], [6, 5, 4]])).logits.shape
    torch.Size([2, 3, 7])
    """

    def __init__(
        self,
        *,
        d_vocab: int,
        d_embed: int,
        d_hidden: int,
        n_layers: int = 2,
        cell: str = "lstm",
        dropout: tuple[float, float] = (0.0, 0.0),
        is_tied: bool = False,
    ) -> None:
        super().__init__()
        self.embed_dropout, self.dropout = map(LockedDropout, dropout)
        self.embed = nn.Embedding(d_vocab, d_embed)
        widths = [d_embed, *[d_hidden] * n_layers]
        self.layers = nn.ModuleList(make_cell(cell, below, d_hidden) for below in widths[:-1])
        d_output = d_embed if is_tied else d_hidden
        is_joined = d_output == d_hidden
        self.join = nn.Identity() if is_joined else nn.Linear(d_hidden, d_output, bias=False)
        self.output = None if is_tied else nn.Parameter(torch.empty(d_vocab, d_output))
        self.bias = nn.Parameter(torch.zeros(d_vocab))
        # The output's scale when a unit's mean square is one; a tied embedding has it, too.
        nn.init.normal_(
            self.embed.weight if self.output is None else self.output, std=d_output**-0.5
        )

    def begin(self, n: int) -> tuple:
        """The initial states of all layers."""
        return tuple(cell.start(n) for cell in self._cells())

    def forward(self, tokens: Int[Tensor, "batch pos"], state: tuple | None = None) -> Predicted:
        """Read the next segment; the state has one entry per layer."""
        return self._predict(self.embed(tokens), state)

    def _predict(
        self, embedded: Float[Tensor, "batch pos d_embed"], state: tuple | None
    ) -> Predicted:
        state = self.begin(len(embedded)) if state is None else state
        hidden, states = self.embed_dropout(embedded), []
        for cell, old in zip(self._cells(), state, strict=True):
            unrolled = cell.unroll(hidden, old)
            hidden = self.dropout(unrolled.outputs)  # [batch, pos, d_hidden]
            states.append(unrolled.state)
        weight = self.embed.weight if self.output is None else self.output
        logits = functional.linear(self.join(hidden), weight, self.bias)
        return Predicted(logits, tuple(states))

    def _cells(self) -> list[Cell]:
        return [cell for cell in self.layers if isinstance(cell, Cell)]

    def influence_on(
        self, tokens: Int[Tensor, " pos"], state: Any = None
    ) -> Float[Tensor, "step before"]:
        """The influence of each symbol of a text on the prediction of each one after the first."""
        with torch.enable_grad():
            embedded = self.embed(tokens[None, :-1]).detach().requires_grad_()
            logits = self._predict(embedded, state).logits[0]
            found = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
            return influence(found, embedded)[:, 0]
