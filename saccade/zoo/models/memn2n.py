"""End-to-end memory networks: several hops of soft attention over facts."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.attention.attend import read
from saccade.zoo.attention.masks import masked_softmax
from saccade.zoo.memories.facts import SPREAD, SentenceBags, fact_ages, scatter_facts
from saccade.zoo.models.best_of import Answered
from saccade.zoo.tasks.babi import StoryBatch

Tying = Literal["adjacent", "layer-wise"]


class MemN2N(nn.Module):
    """``p_i = softmax(u . m_i)``, ``o = sum_i p_i c_i``, ``u' = u + o``, some hops, ``W u``.

    Sukhbaatar et al., 2015 (https://arxiv.org/abs/1503.08895):

    - *Memory* (sections 2.1 and 4.1). A fact is a bag of words with position encoding, plus a
      learnt vector of its age, in one embedding as a key m_i and in another as a value c_i. In
      training the ages have random noise.
    - *Hops* (section 2.2). Each attends with the state so far. *Adjacent* tying: the values of a
      hop are the keys of the next, the question is embedded as the first keys, the answer as the
      last values. *Layer-wise*: every hop has the same embeddings, and ``u' = H u + o``.
    - *Linear start* (section 4.2). While ``is_linear`` is set, there is no softmax.
    - ``is_rectified``: a ReLU on half of the state after each hop (section 5: half of the units, in
      their language model; for bAbI with 10,000 questions they only report that it helps).

    Where we differ: padding has no embedding, instead of one that is reset to zero; dropout on the
    state before the answer, which the paper does not have, because 1,000 questions per task are
    few.
    """

    def __init__(
        self,
        *,
        n_words: int,
        d_embed: int = 50,
        n_hops: int = 3,
        n_ages: int = 50,
        tying: Tying = "adjacent",
        noise: float = 0.1,
        is_rectified: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_hops, self.n_ages, self.noise = n_hops, n_ages, noise
        self.is_adjacent, self.is_rectified = tying == "adjacent", is_rectified
        self.is_linear = False
        # Adjacent: hop k has keys k and values k + 1. Layer-wise: question, keys, values, answer.
        n_tables = n_hops + 1 if self.is_adjacent else 4
        self.bags = SentenceBags(n_words=n_words, n_tables=n_tables, d_embed=d_embed)
        self.ages = nn.Parameter(SPREAD * torch.randn(n_ages, n_tables, d_embed))
        self.carry = nn.Identity() if self.is_adjacent else nn.Linear(d_embed, d_embed, bias=False)
        self.dropout = nn.Dropout(dropout)

    def remember(
        self, facts: Int[Tensor, "batch fact word"], mask: Bool[Tensor, "batch fact"]
    ) -> Float[Tensor, "batch fact table d_embed"]:
        """Every fact in every embedding, with its age."""
        ages = fact_ages(mask, noise=self.noise if self.training else 0.0)
        embedded = self.bags(facts[mask]) + functional.embedding(
            ages[mask].clamp(max=self.n_ages - 1), self.ages.flatten(1)
        ).view(-1, *self.ages.shape[1:])  # [real, table, d_embed]
        return scatter_facts(embedded, mask)

    def forward(self, batch: StoryBatch) -> Answered:
        """Attend to the facts in several hops, and answer."""
        memory = self.remember(batch.facts, batch.fact_mask).unbind(2)
        state = self.bags(batch.question)[:, 0]  # [batch, d_embed]
        mask = batch.fact_mask[:, None]
        looks = []
        for hop in range(self.n_hops):
            keys, values = memory[hop : hop + 2] if self.is_adjacent else memory[1:3]
            scores = state[:, None] @ keys.mT  # [batch, 1, fact]
            is_linear = self.is_linear and self.training
            weights = scores * mask if is_linear else masked_softmax(scores, mask)
            state = self.carry(state) + read(weights, values)[:, 0]
            if self.is_rectified:
                straight, bent = state.chunk(2, dim=1)
                state = torch.cat([straight, bent.relu()], 1)
            looks.append(weights)
        words = self.bags.table().unflatten(1, (-1, state.shape[1]))[:, -1]  # [d_vocab, d_embed]
        return Answered(self.dropout(state) @ words.T, torch.cat(looks, 1))
