"""The reader that looks again at every word of the question.

Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 3, figure 1 (b).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.attention import Attention, Memory, SoftSelect, make_score
from saccade.attention.dropout import Dropout
from saccade.cells import Bidirectional, LstmCell
from saccade.models.attentive_reader import (
    AsksFrom,
    LooksAt,
    ReaderAnswer,
    answering,
    places_of,
    word_vectors,
)
from saccade.tasks.cloze import FIRST_LABEL, GAP, ClozeBatch


class ImpatientReader(nn.Module):
    """``r(i) = sum_t s(i, t) y_t + tanh(W_rr r(i - 1))`` for each word i of the question.

    The weights s(i, .) come from a score of y_t with the question's word i and what was read so
    far, r(i - 1); at the end ``g = tanh(W_r r(n) + W_u u)``, and the answer is the label a with the
    largest ``a . g``.

    Where we differ: as `AttentiveReader` does. The query of the score is
    ``W_q q_i + W_m r(i - 1)``, which has the size of y_t.
    """

    def __init__(
        self,
        *,
        d_vocab: int,
        n_labels: int,
        d_embed: int = 64,
        d_hidden: int = 64,
        score: str = "bilinear",
        asks_from: AsksFrom = "gap",
        looks_at: LooksAt = "names",
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.n_labels = n_labels
        self.asks_from: AsksFrom = asks_from
        self.looks_at: LooksAt = looks_at
        self.embed = word_vectors(d_vocab, d_embed)
        cells = [LstmCell(d_embed, d_hidden) for _ in range(4)]
        self.document_reader = Bidirectional(cells[0], cells[1])
        self.question_reader = Bidirectional(cells[2], cells[3])
        d_read, d_value = 2 * d_hidden, 2 * d_hidden + d_embed
        made = make_score(score, d_query=d_read, d_key=d_read, d_hidden=d_hidden)
        self.attention = Attention(made, SoftSelect())
        self.word_query = nn.Linear(d_read, d_read, bias=False)
        self.read_query = nn.Linear(d_value, d_read, bias=False)
        self.again = nn.Linear(d_value, d_value, bias=False)
        self.from_context = answering(d_read, d_embed)
        self.from_question = nn.Linear(d_read, d_embed)
        self.dropout = Dropout(dropout)

    def read(self, batch: ClozeBatch) -> ReaderAnswer:
        """Read the document, look at it for each word of the question, answer."""
        words = self.dropout(self.embed(batch.document))  # [batch, pos, d_embed]
        states = self.document_reader.unroll(words, mask=batch.document_mask).outputs
        places = places_of(batch, self.looks_at, n_labels=self.n_labels)
        keys = self.dropout(places.pick(states))  # [batch, place, d_read]
        values = torch.cat([keys, places.pick(words)], dim=-1)
        memory = self.attention.remember(keys, values, mask=places.mask)
        asking = self.dropout(self.embed(batch.question))
        asked, last = self.question_reader.unroll(asking, mask=batch.question_mask)
        asked = self.dropout(asked)  # [batch, question_pos, d_read]
        found, looks = self.look_for_each(asked, memory, batch.question_mask)
        u = asked[batch.question == GAP]
        if self.asks_from == "ends":
            u = torch.cat([state.hidden for state in last], dim=-1)
        g = torch.tanh(self.from_context(found) + self.from_question(u))
        labels = self.embed.weight[FIRST_LABEL : FIRST_LABEL + self.n_labels]
        weights = places.spread(looks, n=batch.document.shape[1])
        return ReaderAnswer(self.dropout(g) @ labels.T, weights)

    def look_for_each(
        self,
        asked: Float[Tensor, "batch question_pos d_read"],
        memory: Memory,
        mask: Bool[Tensor, "batch question_pos"],
    ) -> tuple[Float[Tensor, "batch d_value"], Float[Tensor, "batch question_pos place"]]:
        """What was read after the last word, and the weights at each."""
        found = memory.values.new_zeros(len(asked), memory.values.shape[2])
        looks = []
        for query, is_word in zip(self.word_query(asked).unbind(1), mask.unbind(1), strict=True):
            attended = self.attention((query + self.read_query(found))[:, None], memory)
            new = attended.context[:, 0] + torch.tanh(self.again(found))
            found = torch.where(is_word[:, None], new, found)
            looks.append(attended.weights * is_word[:, None, None])
        return found, torch.cat(looks, dim=1)

    def forward(self, batch: ClozeBatch) -> Float[Tensor, "batch label"]:
        """Logits of the labels."""
        return self.read(batch).logits
