"""The feed-forward neural language model: it sees only the last few symbols."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.models.language_model import LanguageModel, Predicted
from saccade.zoo.models.sequence_reader import influence
from saccade.zoo.tasks.vocabulary import BOS


class MemorylessLanguageModel(LanguageModel):
    """Predict the next symbol from the concatenated embeddings of the last few.

    Bengio et al., 2003 ("A neural probabilistic language model"), equation 1::

        y = b + W x + U tanh(d + H x),   x = [C(w_(t-1)), ..., C(w_(t-n+1))]

    Unlike an n-gram table it generalises over words with similar use; like one it ignores earlier
    context. The direct connections W are optional, as in the paper. The context before a text is
    BOS. Unlike the paper we use dropout on the hidden units and torch's initialisation.

    Args:
        n_context: The n - 1 of an n-gram.

    >>> model = MemorylessLanguageModel(d_vocab=7, d_embed=3, d_hidden=5, n_context=2)
    >>> model(torch.tensor([[4, 5, 6], [6, 5, 4]])).logits.shape
    torch.Size([2, 3, 7])
    """

    def __init__(
        self,
        *,
        d_vocab: int,
        d_embed: int,
        d_hidden: int,
        n_context: int,
        dropout: float = 0.0,
        is_direct: bool = False,
    ) -> None:
        super().__init__()
        self.n_context = n_context
        self.embed = nn.Embedding(d_vocab, d_embed)
        self.hidden = nn.Linear(n_context * d_embed, d_hidden)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(d_hidden, d_vocab)
        self.direct = nn.Linear(n_context * d_embed, d_vocab, bias=False) if is_direct else None

    def begin(self, n: int) -> Int[Tensor, "batch history"]:
        """The initial context of BOS."""
        return torch.full((n, self.n_context - 1), BOS, device=self.output.weight.device)

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        state: Int[Tensor, "batch history"] | None = None,
    ) -> Predicted:
        """Predict the next symbol from each symbol and those before it."""
        before = self.begin(len(tokens)) if state is None else state
        read = torch.cat([before, tokens], dim=1)
        logits = self._predict(self.embed(read))
        return Predicted(logits, read[:, tokens.shape[1] :])

    def _predict(
        self, embedded: Float[Tensor, "batch read d_embed"]
    ) -> Float[Tensor, "batch pos d_vocab"]:
        x = embedded.unfold(1, self.n_context, 1)  # [batch, pos, d_embed, n_context]
        x = x.transpose(2, 3).flatten(2)  # [batch, pos, n_context * d_embed]
        logits = self.output(self.dropout(torch.tanh(self.hidden(x))))
        return logits if self.direct is None else logits + self.direct(x)

    def influence_on(self, tokens: Int[Tensor, " pos"]) -> Float[Tensor, "step before"]:
        """The influence of each symbol of a text on the prediction of each one after the first."""
        with torch.enable_grad():
            embedded = self.embed(tokens[None, :-1]).detach().requires_grad_()
            read = torch.cat([self.embed(self.begin(1)), embedded], dim=1)
            log_probs = self._predict(read)[0].log_softmax(-1)
            return influence(log_probs.gather(1, tokens[1:, None])[:, 0], embedded)[:, 0]
