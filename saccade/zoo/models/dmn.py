"""Dynamic memory networks: several episodes of attention over facts (DMN and DMN+)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.attention.masks import masked_softmax
from saccade.zoo.cells.gru import AttentionGru, GruCell
from saccade.zoo.cells.stacks import Bidirectional
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.memories.facts import PAD, SentenceBags, scatter_facts
from saccade.zoo.models.best_of import Answered
from saccade.zoo.tasks.babi import StoryBatch

# How dynamic memory networks turn a story and a question into vectors.

UNIT = 1.0
"""Standard deviation of initial embeddings: Xiong et al. draw from U(-sqrt(3), sqrt(3))."""


class Story(NamedTuple):
    """Encoded facts and question."""

    facts: Float[Tensor, "batch fact d_hidden"]
    question: Float[Tensor, "batch d_hidden"]


class InputFusion(nn.Module):
    """Each fact is a bag of words with position encoding; a bidirectional GRU adds context.

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
        embedded = scatter_facts(
            self.dropout(self.bags(facts[mask])[:, 0]), mask
        )  # [batch, fact, d_hidden]
        ahead, back = self.fusion.unroll(embedded, mask=mask).outputs.chunk(2, dim=2)
        asked = self.dropout(functional.embedding(question, self.bags.table()))
        return Story(ahead + back, self.question.unroll(asked, mask=question != PAD).state)


class WordReader(nn.Module):
    """A GRU reads the story word by word; a fact is its state at the end of a sentence.

    Kumar et al., 2016 (https://arxiv.org/abs/1506.07285), sections 2.1 and 2.2; another GRU, with
    the same embeddings, reads the question.
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
        tokens = facts.flatten(1)
        # Words move to the front of each row, in order: no padding between sentences.
        order = (tokens == PAD).long().argsort(dim=1, stable=True)
        tokens = tokens.gather(1, order)[:, : max(1, int(lengths.sum(1).max()))]
        states = self.story.unroll(self.dropout(self.words(tokens)), mask=tokens != PAD).outputs
        ends = (lengths.cumsum(1) - 1).clamp(min=0)[:, :, None].expand(-1, -1, states.shape[2])
        asked = self.question.unroll(self.dropout(self.words(question)), mask=question != PAD)
        return Story(states.gather(1, ends) * mask[:, :, None], asked.state)


Form = Literal["plus", "original"]


class DynamicMemoryNetwork(nn.Module):
    """Episode t: ``g_i = gate(f_i, q, m_(t-1))``, ``c_t = AttentionGru(f, g)``, ``m_t``; then W.

    ``form="plus"`` is DMN+, Xiong et al., 2016 (https://arxiv.org/abs/1603.01417), section 3:

    - *Input fusion.* Facts are bags of words with position encoding, then go through a
      bidirectional GRU.
    - *Gates.* ``softmax_i(W2 tanh(W1 z_i + b1) + b2)`` with
      ``z_i = [f_i * q, f_i * m, |f_i - q|, |f_i - m|]`` (equations 8 and 9).
    - *Episode.* An `AttentionGru` over the facts.
    - *Memory.* ``m_t = relu(W_t [m_(t-1), c_t, q] + b)``, with separate weights in each episode
      (13).

    ``form="original"`` is DMN, Kumar et al., 2016 (https://arxiv.org/abs/1506.07285), section 2:

    - A GRU reads the story word by word, facts are its states at the ends of sentences.
    - Gates are sigmoids, and z_i has f_i, m and q, too (equation in section 2.3).
    - An episode is ``h_i = g_i GRU(f_i, h_(i-1)) + (1 - g_i) h_(i-1)``, memory another GRU.

    Where we differ: an answer is one entry of the vocabulary, also where it lists several words, so
    the answer module is a linear map of ``[m, q]`` and not a GRU decoder; the bilinear terms ``f W
    q`` and ``f W m`` of the original z are left out, W1 sees the products.
    """

    def __init__(
        self,
        *,
        n_words: int,
        d_hidden: int = 80,
        n_episodes: int = 3,
        form: Form = "plus",
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        d = d_hidden
        self.is_plus = form == "plus"
        self.n_episodes = n_episodes
        self.input = (InputFusion if self.is_plus else WordReader)(
            n_words=n_words, d_hidden=d, dropout=dropout
        )
        self.gate_of_question = nn.Linear(2 * d if self.is_plus else 4 * d, d)
        self.gate_of_memory = nn.Linear(2 * d if self.is_plus else 3 * d, d, bias=False)
        self.gate_score = nn.Linear(d, 1)
        if self.is_plus:
            self.episode = AttentionGru(d_input=d, d_hidden=d)
            self.memory = nn.ModuleList(nn.Linear(3 * d, d) for _ in range(n_episodes))
        else:
            self.episode, self.memory = GruCell(d, d), GruCell(d, d)
        self.output = nn.Linear(2 * d, n_words)
        self.dropout = Dropout(dropout)

    def gates(
        self,
        of_question: Float[Tensor, "batch fact d_hidden"],
        facts: Float[Tensor, "batch fact d_hidden"],
        memory: Float[Tensor, "batch d_hidden"],
        *,
        mask: Bool[Tensor, "batch fact"],
    ) -> Float[Tensor, "batch fact"]:
        """The attention gate of each fact in an episode.

        Args:
            of_question: The part of W1 z that is constant over episodes.
        """
        seen = self.gate_of_memory(_compared(facts, memory, is_plain=not self.is_plus))
        scores = self.gate_score((of_question + seen).tanh_())[..., 0]  # [batch, fact]
        return masked_softmax(scores, mask) if self.is_plus else scores.sigmoid() * mask

    def forward(self, batch: StoryBatch) -> Answered:
        """Read the story in episodes, and answer."""
        mask = batch.fact_mask
        facts, question = self.input(batch.facts, mask, batch.question)
        compared = _compared(facts, question, is_plain=not self.is_plus)
        if not self.is_plus:
            compared = torch.cat([compared, facts], -1)
        of_question = self.gate_of_question(compared)
        projected = self.episode.project(facts)
        memory, looks = question, []
        for number in range(self.n_episodes):
            weights = self.gates(of_question, facts, memory, mask=mask)
            memory = self.update(number, memory, self.recall(projected, weights), question)
            looks.append(weights)
        said = self.output(self.dropout(torch.cat([memory, question], 1)))
        return Answered(said, torch.stack(looks, 1))

    def recall(
        self, projected: Float[Tensor, "batch fact d_gates"], weights: Float[Tensor, "batch fact"]
    ) -> Float[Tensor, "batch d_hidden"]:
        """The context of an episode: c in DMN+, e in the original."""
        if isinstance(self.episode, AttentionGru):
            return self.episode(projected, weights)
        hidden = self.episode.start(len(projected))
        for fact, weight in zip(projected.unbind(1), weights.unbind(1), strict=True):
            hidden = hidden.lerp(self.episode.advance(fact, hidden).output, weight[:, None])
        return hidden

    def update(
        self,
        number: int,
        memory: Float[Tensor, "batch d_hidden"],
        recalled: Float[Tensor, "batch d_hidden"],
        question: Float[Tensor, "batch d_hidden"],
    ) -> Float[Tensor, "batch d_hidden"]:
        """The memory after an episode."""
        if isinstance(self.memory, GruCell):
            return self.memory.step(recalled, memory).output
        return self.memory[number](torch.cat([memory, recalled, question], 1)).relu()


def _compared(
    facts: Float[Tensor, "batch fact d_hidden"],
    other: Float[Tensor, "batch d_hidden"],
    *,
    is_plain: bool,
) -> Float[Tensor, "batch fact d_compared"]:
    """``[f * x, |f - x|]``, and x itself if it is plain."""
    one = other[:, None]
    parts = [facts * one, (facts - one).abs()]
    return torch.cat([*parts, one.expand_as(facts)] if is_plain else parts, -1)
