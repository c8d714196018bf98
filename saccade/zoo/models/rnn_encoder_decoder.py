"""The RNN encoder-decoder: the source becomes one vector, read by every step of the decoder.

Cho et al., 2014 (https://arxiv.org/abs/1406.1078), where the GRU was introduced. Its purpose there
was not to translate but to score the phrase pairs of a phrase-based translator:
``log p(target | source)`` as one more feature. `score_phrases` does that.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.zoo.cells.gru import GruCell
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.objectives.likelihood import sequence_log_probs
from saccade.zoo.tasks.pairs import PairBatch, encode_pairs
from saccade.zoo.tasks.tokenizers import Tokenizer
from saccade.zoo.tasks.vocabulary import Padded


class ScoredPair(NamedTuple):
    """A phrase, its translation, and the model's log-probability."""

    source: str
    target: str
    log_prob: float
    """Of the whole target phrase, including its end, given the source phrase."""


class RnnEncoderDecoder(nn.Module):
    """A GRU encodes, its last state gives the summary c, and a GRU that reads c decodes.

    Section 2.2 and appendix A: ``c = tanh(V h_T)``, ``h'_0 = tanh(V' c)``, and the decoder's gates
    and candidate see the previous word, the previous state, and c. The next word is predicted by a
    maxout layer from the state, the word and c.

    Where we differ: the reset gate does not apply to c, because torch's fused kernel applies it
    only to the state; so the whole target is one call of the kernel. The paper has 1000 units,
    embeddings of 100 and 500 maxout units, too many for Multi30k.
    """

    def __init__(
        self,
        *,
        n_source: int,
        n_target: int,
        d_embed: int = 128,
        d_hidden: int = 384,
        d_maxout: int = 192,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.source_embed = nn.Embedding(n_source, d_embed)
        self.target_embed = nn.Embedding(n_target, d_embed)
        self.encoder = GruCell(d_embed, d_hidden)
        self.summarise = nn.Linear(d_hidden, d_hidden)
        self.first = nn.Linear(d_hidden, d_hidden)
        self.decoder = GruCell(d_embed + d_hidden, d_hidden)
        self.before_maxout = nn.Linear(d_hidden + d_embed + d_hidden, 2 * d_maxout)
        self.output = nn.Linear(d_maxout, n_target)
        self.dropout = Dropout(dropout)

    def read(
        self, source: Int[Tensor, "batch source_pos"], mask: Bool[Tensor, "batch source_pos"]
    ) -> Float[Tensor, "batch d_hidden"]:
        """The summary c of each source."""
        words = self.dropout(self.source_embed(source))
        return torch.tanh(self.summarise(self.encoder.unroll(words, mask=mask).state))

    def predict(
        self,
        hidden: Float[Tensor, "*at d_hidden"],
        word: Float[Tensor, "*at d_embed"],
        summary: Float[Tensor, "*at d_hidden"],
    ) -> Float[Tensor, "*at d_vocab"]:
        """Logits from state, previous word and summary; appendix A.1.2."""
        pairs = self.before_maxout(torch.cat([hidden, word, summary], dim=-1))
        best = pairs.unflatten(-1, (-1, 2)).amax(-1)  # [*at, d_maxout]
        return self.output(self.dropout(best))

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real target positions, with teacher forcing."""
        summary = self.read(batch.source, batch.source_mask)  # [batch, d_hidden]
        words = self.dropout(self.target_embed(batch.target_in))  # [batch, pos, d_embed]
        everywhere = summary[:, None].expand(-1, words.shape[1], -1)  # [batch, pos, d_hidden]
        inputs = torch.cat([words, everywhere], dim=-1)
        hidden = self.decoder.unroll(inputs, torch.tanh(self.first(summary))).outputs
        real = batch.target_mask
        return self.predict(hidden[real], words[real], everywhere[real])

    def log_prob(self, batch: PairBatch) -> Float[Tensor, " batch"]:
        """``log p(target | source)`` of each pair, including the end symbol."""
        return sequence_log_probs(self.forward(batch), batch.target_out, batch.target_mask)

    def start(self, source: Padded) -> Started:
        """Summarise the source."""
        summary = self.read(source.ids, source.mask)
        return Started(summary, torch.tanh(self.first(summary)))

    def step(
        self,
        tokens: Int[Tensor, " row"],
        memory: Float[Tensor, "sentence d_hidden"],
        state: Float[Tensor, "row d_hidden"],
    ) -> Stepped:
        """Predict what follows ``tokens``."""
        word = self.target_embed(tokens)
        summary = memory.repeat_interleave(len(tokens) // len(memory), dim=0)  # [row, d_hidden]
        hidden, state = self.decoder.step(torch.cat([word, summary], dim=-1), state)
        return Stepped(self.predict(hidden, word, summary).log_softmax(-1), state)


@torch.no_grad()
def score_phrases(
    model: RnnEncoderDecoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
) -> list[ScoredPair]:
    """Score phrase pairs, in their order, each by ``log p(target | source)``.

    Section 3.1. A phrase-based translator takes this as one more feature of its log-linear model.

    Args:
        tokenizer: The model's tokenizer; of the source only if there is a ``target_tokenizer``.
    """
    pairs = encode_pairs(sources, targets, tokenizer=tokenizer, target_tokenizer=target_tokenizer)
    log_prob = torch.empty(len(pairs))
    where = next(model.parameters()).device
    for batch in pairs.in_order(tokens=4096):
        here = PairBatch._make(part.to(where) for part in batch)
        log_prob[batch.rows] = model.log_prob(here).cpu()
    scored = zip(sources, targets, log_prob.tolist(), strict=True)
    return [ScoredPair(*each) for each in scored]
