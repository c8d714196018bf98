"""How dynamic memory networks turn a story and a question into vectors."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.attention.dropout import Dropout
from saccade.cells import Bidirectional, GruCell
from saccade.memories.facts import PAD, SentenceBags, fill_in

UNIT = 1.0
"""Standard deviation of first word vectors: Xiong et al. draw them between -sqrt(3) and sqrt(3)."""


class Story(NamedTuple):
    """What is asked, and about what."""

    facts: Float[Tensor, "batch fact d_hidden"]
    question: Float[Tensor, "batch d_hidden"]


class InputFusion(nn.Module):
    """Each fact a bag of words with position encoding; then facts know those around them.

    Xiong et al., 2016 (https://arxiv.org/abs/1603.01417), section 3.1: a GRU over the facts in both
    directions, whose states are added. The question is read word by word by a GRU.
    """

    def __init__(self, *, n_words: int, d_hidden: int, dropout: float) -> None:
        super().__init__()
        d = d_hidden
        self.bags = SentenceBags(n_words=n_words, n_tables=1, d_embed=d, spread=UNIT)
        self.fusion = Bidirectional(GruCell(d, d), GruCell(d, d))
        self.question = GruCell(d, d)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        facts: Int[Tensor, "batch fact word"],
        mask: Bool[Tensor, "batch fact"],
        question: Int[Tensor, "batch asked_word"],
    ) -> Story:
        """Encode facts and questions."""
        told = fill_in(self.dropout(self.bags(facts[mask])[:, 0]), mask)  # [batch, fact, d_hidden]
        ahead, back = self.fusion.unroll(told, mask=mask).outputs.chunk(2, dim=2)
        asked = self.dropout(functional.embedding(question, self.bags.table()))
        return Story(ahead + back, self.question.unroll(asked, mask=question != PAD).state)


class WordReader(nn.Module):
    """A GRU reads the story word by word; a fact is its state at the end of a sentence.

    Kumar et al., 2016 (https://arxiv.org/abs/1506.07285), sections 2.1 and 2.2; another GRU, with
    the same word vectors, reads the question.
    """

    def __init__(self, *, n_words: int, d_hidden: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, d_hidden, padding_idx=PAD)
        self.story = GruCell(d_hidden, d_hidden)
        self.question = GruCell(d_hidden, d_hidden)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        facts: Int[Tensor, "batch fact word"],
        mask: Bool[Tensor, "batch fact"],
        question: Int[Tensor, "batch asked_word"],
    ) -> Story:
        """Encode facts and questions."""
        lengths = (facts != PAD).sum(2)  # [batch, fact]
        told = facts.flatten(1)
        # Words move to the front of each row, in their order: no padding between two sentences.
        order = (told == PAD).long().argsort(dim=1, stable=True)
        told = told.gather(1, order)[:, : max(1, int(lengths.sum(1).max()))]
        states = self.story.unroll(self.dropout(self.words(told)), mask=told != PAD).outputs
        ends = (lengths.cumsum(1) - 1).clamp(min=0)[:, :, None].expand(-1, -1, states.shape[2])
        asked = self.question.unroll(self.dropout(self.words(question)), mask=question != PAD)
        return Story(states.gather(1, ends) * mask[:, :, None], asked.state)
