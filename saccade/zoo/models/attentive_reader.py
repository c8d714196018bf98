"""The Attentive Reader and the Impatient Reader: a question attends to a document.

Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 3, figure 1 (a).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.zoo.attention.attend import Attention, Memory
from saccade.zoo.attention.scores import make_score
from saccade.zoo.attention.select import SoftSelect
from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.cells.stacks import Bidirectional
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.cloze import FIRST_LABEL, GAP, ClozeBatch

AsksFrom = Literal["ends", "gap"]
LooksAt = Literal["names", "words"]


class ReaderAnswer(NamedTuple):
    """Logits and attention of a reader."""

    logits: Float[Tensor, "batch label"]
    """Of every label, including those that are not candidates."""
    weights: Float[Tensor, "batch step pos"]
    """Weights over the document, at each step of attention."""


class Places(NamedTuple):
    """The positions of each document that may be attended, as one tensor."""

    at: Int[Tensor, "batch place"]
    mask: Bool[Tensor, "batch place"]

    def pick(self, steps: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch place d"]:
        """The vectors at these positions."""
        return steps.gather(1, self.at[:, :, None].expand(-1, -1, steps.shape[2]))

    def spread(
        self, weights: Float[Tensor, "batch step place"], *, n: int
    ) -> Float[Tensor, "batch step pos"]:
        """Weights of these positions as weights over all ``n`` words."""
        at = self.at[:, None].expand_as(weights)
        empty = weights.new_zeros(*weights.shape[:2], n)
        return empty.scatter_add(2, at, weights)


class Asked(NamedTuple):
    """An encoded question."""

    words: Float[Tensor, "batch question_pos d_read"]
    mask: Bool[Tensor, "batch question_pos"]
    whole: Float[Tensor, "batch d_read"]
    """The question as one vector: u in the paper."""


class Remembered(NamedTuple):
    """An encoded document: attended positions, and the memory of their vectors."""

    places: Places
    memory: Memory


class Looked(NamedTuple):
    """The context from a document, r in the paper, and the weights."""

    found: Float[Tensor, "batch d_value"]
    weights: Float[Tensor, "batch step place"]


class AttentiveReader(nn.Module):
    """``s(t) ~ exp(score(u, y_t))``, ``r = sum_t s(t) y_t``, ``g = tanh(W_r r + W_u u)``.

    A bidirectional encoding y of the document, and one of the question with u at its ends. The
    answer is the label a with the largest ``a . g``.

    Where we differ, since our books have 5 % as many questions as the paper:

    - The score is bilinear, ``u . W y_t``; the paper's is a tanh layer (``score="additive"``). Chen
      et al., 2016 (https://arxiv.org/abs/1606.02858), section 4.2, gained 7 to 10 points with it.
    - u is the encoding at the gap. The paper's is that at both ends (``asks_from="ends"``), some 20
      words away from the gap.
    - Only names are attended, as nothing else can be the answer. The paper attends to all words
      (``looks_at="words"``).
    - The value is y_t concatenated with the word's embedding, and input and output embeddings of
      labels are tied. W_r is initialised to pass the embedding on: attending to a name predicts it.
    - The softmax is over candidates only: see `cloze_loss`. The paper's softmax is over all words.
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
        d_read = 2 * d_hidden
        made = make_score(score, d_query=d_read, d_key=d_read, d_hidden=d_hidden)
        self.attention = Attention(made, SoftSelect())
        self.from_context = answering(d_read, d_embed)
        self.from_question = nn.Linear(d_read, d_embed)
        self.dropout = Dropout(dropout)

    def ask(self, batch: ClozeBatch) -> Asked:
        """Encode the question."""
        words = self.dropout(self.embed(batch.question))
        states, last = self.question_reader.unroll(words, mask=batch.question_mask)
        states = self.dropout(states)
        whole = states[batch.question == GAP]  # one per row
        if self.asks_from == "ends":
            whole = self.dropout(torch.cat([state.hidden for state in last], dim=-1))
        return Asked(states, batch.question_mask, whole)

    def remember(self, batch: ClozeBatch) -> Remembered:
        """Encode the document: the state at each position, concatenated with the word."""
        words = self.dropout(self.embed(batch.document))  # [batch, pos, d_embed]
        states = self.document_reader.unroll(words, mask=batch.document_mask).outputs
        places = places_of(batch, self.looks_at, n_labels=self.n_labels)
        keys = self.dropout(places.pick(states))  # [batch, place, d_read]
        values = torch.cat([keys, places.pick(words)], dim=-1)
        return Remembered(places, self.attention.remember(keys, values, mask=places.mask))

    def look(self, asked: Asked, memory: Memory) -> Looked:
        """Attend once, with the whole question."""
        attended = self.attention(asked.whole[:, None], memory)
        return Looked(attended.context[:, 0], attended.weights)

    def read(self, batch: ClozeBatch) -> ReaderAnswer:
        """Encode document and question, attend, answer."""
        places, memory = self.remember(batch)
        asked = self.ask(batch)
        found, weights = self.look(asked, memory)
        g = torch.tanh(self.from_context(found) + self.from_question(asked.whole))
        labels = self.embed.weight[FIRST_LABEL : FIRST_LABEL + self.n_labels]
        shown = places.spread(weights, n=batch.document.shape[1])
        return ReaderAnswer(self.dropout(g) @ labels.T, shown)

    def forward(self, batch: ClozeBatch) -> Float[Tensor, "batch label"]:
        """Logits of the labels."""
        return self.read(batch).logits


def places_of(batch: ClozeBatch, looks_at: LooksAt, *, n_labels: int) -> Places:
    """The positions of the names, or of all words, of each document, padded to the longest."""
    ids, may = batch.document, batch.document_mask
    if looks_at == "names":
        may = (ids >= FIRST_LABEL) & (ids < FIRST_LABEL + n_labels)
    most = max(1, int(may.sum(1).max()))
    at = (~may).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    return Places(at, may.gather(1, at))


def word_vectors(d_vocab: int, d_embed: int) -> nn.Embedding:
    """Embeddings of words and labels.

    Their norm is about two: a label that is passed on unchanged then has a probability of 86 %
    among ten candidates, so attention has a gradient and there is room to learn.
    """
    embed = nn.Embedding(d_vocab, d_embed)
    nn.init.normal_(embed.weight, std=2 * d_embed**-0.5)
    return embed


def answering(d_read: int, d_embed: int) -> nn.Linear:
    """A matrix from context (states and words) to an answer; initially the identity on words.

    >>> answering(3, 2)(torch.tensor([0.0, 0.0, 0.0, 5.0, 7.0])).tolist()
    [5.0, 7.0]
    """
    made = nn.Linear(d_read + d_embed, d_embed, bias=False)
    nn.init.eye_(made.weight.data[:, d_read:])
    return made


# The reader that attends again at every word of the question.
#
# Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 3, figure 1 (b).


class ImpatientReader(AttentiveReader):
    """``r(i) = sum_t s(i, t) y_t + tanh(W_rr r(i - 1))`` for each word i of the question.

    The weights s(i, .) come from a score of y_t with the question's word i and r(i - 1); at the end
    ``g = tanh(W_r r(n) + W_u u)``, and the answer is the label a with the largest ``a . g``.

    Where we differ: as for `AttentiveReader`. The query of the score is ``u + W_q q_i + W_m r(i -
    1)``, with u in it, because the last words of a question say little about the gap; and W_q, W_m
    and W_rr are initialised to zero. So it starts as an attentive reader with query u, and learns
    what more steps add.
    """

    def __init__(self, *, d_embed: int = 64, d_hidden: int = 64, **others: Any) -> None:
        super().__init__(d_embed=d_embed, d_hidden=d_hidden, **others)
        d_read, d_value = 2 * d_hidden, 2 * d_hidden + d_embed
        self.word_query = nn.Linear(d_read, d_read, bias=False)
        self.read_query = nn.Linear(d_value, d_read, bias=False)
        self.again = nn.Linear(d_value, d_value, bias=False)
        for added in (self.word_query, self.read_query, self.again):
            nn.init.zeros_(added.weight)

    def look(self, asked: Asked, memory: Memory) -> Looked:
        """Attend with each word of the question in turn."""
        found = memory.values.new_zeros(len(asked.whole), memory.values.shape[2])
        looks = []
        queries = (asked.whole[:, None] + self.word_query(asked.words)).unbind(1)
        for query, is_word in zip(queries, asked.mask.unbind(1), strict=True):
            attended = self.attention((query + self.read_query(found))[:, None], memory)
            new = attended.context[:, 0] + torch.tanh(self.again(found))
            found = torch.where(is_word[:, None], new, found)
            looks.append(attended.weights * is_word[:, None, None])
        return Looked(found, torch.cat(looks, dim=1))
