"""Sequence to sequence: a deep LSTM encodes the source, another decodes from its state.

Sutskever, Vinyals and Le, 2014 (https://arxiv.org/abs/1409.3215). The decoder knows only the state
of the first LSTM after the last source word; there is no attention. The paper reverses the source,
so that its first words are near the first words of the target: see ``is_reversed`` of
`saccade.zoo.tasks.pairs.Pairs`, where it is done before padding.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.zoo.cells.stacks import make_stack
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.vocabulary import Padded

INIT = 0.08  # section 3.4; some lectures say 0.05


class Seq2Seq(nn.Module):
    """``p(y) = prod_t p(y_t | v, y_1 .. y_(t-1))`` with v the state after the whole source.

    Equation 1. Each layer of the second LSTM starts from the state of the same layer of the first.
    Both run through torch's fused kernel: with teacher forcing no step depends on the model's
    predictions.

    As in the paper all weights are initialised from U(-0.08, 0.08). The paper has 4 layers of 1000
    units; our default is the best for twenty minutes on two cores. Dropout between layers (Zaremba
    et al., 2014, https://arxiv.org/abs/1409.2329) is ours: the paper has 12 million sentences and
    needs none.
    """

    def __init__(
        self,
        *,
        n_source: int,
        n_target: int,
        d_embed: int = 256,
        d_hidden: int = 384,
        n_layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.source_embed = nn.Embedding(n_source, d_embed)
        self.target_embed = nn.Embedding(n_target, d_embed)
        self.encoder = make_stack("lstm", d_embed, d_hidden, n_layers=n_layers, dropout=dropout)
        self.decoder = make_stack("lstm", d_embed, d_hidden, n_layers=n_layers, dropout=dropout)
        self.output = nn.Linear(d_hidden, n_target)
        self.dropout = Dropout(dropout)
        for weight in self.parameters():
            if weight.requires_grad:
                nn.init.uniform_(weight, -INIT, INIT)

    def read(
        self, source: Int[Tensor, "batch source_pos"], mask: Bool[Tensor, "batch source_pos"]
    ) -> Any:
        """The states of all layers after the last word of each source: the paper's v."""
        words = self.dropout(self.source_embed(source))  # [batch, source_pos, d_embed]
        return self.encoder.unroll(words, mask=mask).state

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real target positions, with teacher forcing."""
        state = self.read(batch.source, batch.source_mask)
        words = self.dropout(self.target_embed(batch.target_in))  # [batch, pos, d_embed]
        # No mask: padding comes after all positions that are used.
        hidden = self.decoder.unroll(words, state).outputs  # [batch, pos, d_hidden]
        return self.output(self.dropout(hidden[batch.target_mask]))

    def start(self, source: Padded) -> Started:
        """Encode the source; only the state is kept."""
        return Started(None, self.read(source.ids, source.mask))

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: Any) -> Stepped:
        """Predict what follows ``tokens``."""
        del memory  # there is none
        hidden, state = self.decoder.step(self.target_embed(tokens), state)
        return Stepped(torch.log_softmax(self.output(hidden), dim=-1), state)
