"""Memory networks: supporting facts are found one after the other, with supervision."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.zoo.memories.facts import SPREAD, SentenceBags, fact_ages, scatter_facts
from saccade.zoo.models.best_of import Answered
from saccade.zoo.tasks.babi import StoryBatch

N_ROLES = 3
"""Embeddings for found facts: of the first, of the second, of all later ones."""
FARTHEST = 30
"""Maximum time difference between facts; larger ones are clamped."""


class EncodedStory(NamedTuple):
    """An encoded story and question."""

    facts: Int[Tensor, "batch fact word"]
    mask: Bool[Tensor, "batch fact"]
    ages: Int[Tensor, "batch fact"]
    candidates: Float[Tensor, "batch fact d_embed"]
    """Every fact embedded as a candidate."""
    questions: Float[Tensor, "batch purpose d_embed"]
    """Question embeddings for finding facts and for answering."""


class Ranked(NamedTuple):
    """Score of each fact as the next one; the last candidate means "no more"."""

    scores: Float[Tensor, "batch step candidate"]
    mask: Bool[Tensor, "batch step candidate"]
    """False for padding and for facts found before."""


class MemNN(nn.Module):
    """``o_k = argmax_i s_O([q, o_1 .. o_(k-1)], m_i)`` until "no more"; then s_R of words.

    Weston et al., 2015, "Memory networks" (https://arxiv.org/abs/1410.3916), section 3, in the form
    for bAbI of Weston et al., 2015 (https://arxiv.org/abs/1502.05698), section 5:

    - *Roles* (section 3.1 of the first). Question, candidate and found fact have separate
      embeddings, and so have the first, second and later found facts.
    - *Adaptive memory*. The search ends when the best candidate is "no more".
    - *Non-linear*. The query is ``tanh(W x)`` of the sum x of question and found facts.
    - *Time*. A candidate is also scored by its age, and by its distance from the last two found
      facts.

    Where we differ: sentences are bags with position encoding (as in `MemN2N`) instead of bags of
    three-word sequences; times are learnt vectors of differences, scored with the query, instead of
    features that compare two candidates; one model is trained on all tasks.
    """

    def __init__(
        self,
        *,
        n_words: int,
        d_embed: int = 100,
        d_hidden: int = 200,
        n_ages: int = 100,
        max_steps: int = 10,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.max_steps = max_steps
        # Question and found facts have separate embeddings for finding and for answering.
        self.candidate, self.question, self.found = (
            SentenceBags(n_words=n_words, n_tables=n_tables, d_embed=d_embed)
            for n_tables in (1, 2, 2 * N_ROLES)
        )
        self.steps = nn.Parameter(SPREAD * torch.randn(max_steps + 1, d_embed))
        self.looking = nn.Linear(d_embed, d_embed)
        self.ages = nn.Parameter(SPREAD * torch.randn(n_ages, d_embed))
        self.distances = nn.Parameter(SPREAD * torch.randn(2, 2 * FARTHEST + 1, d_embed))
        self.nothing = nn.Parameter(SPREAD * torch.randn(d_embed))
        self.thinking = nn.Linear(d_embed, d_hidden)
        self.output = nn.Linear(d_hidden, n_words)
        self.dropout = nn.Dropout(dropout)

    def read(self, batch: StoryBatch) -> EncodedStory:
        """Embed the question, and facts as candidates."""
        mask = batch.fact_mask
        candidates = scatter_facts(self.candidate(batch.facts[mask])[:, 0], mask)
        ages = fact_ages(mask).clamp(max=len(self.ages) - 1)
        return EncodedStory(batch.facts, mask, ages, candidates, self.question(batch.question))

    def gather(
        self, story: EncodedStory, found: Int[Tensor, "batch step"], *, is_answering: bool
    ) -> Float[Tensor, "batch step_or_end d_embed"]:
        """The sum of question and found facts before each step, and after the last."""
        rows = torch.arange(len(found), device=found.device)[:, None]
        sentences = story.facts[rows, found.clamp(min=0)]  # [batch, step, word]
        seen = scatter_facts(self.found(sentences[found >= 0]), found >= 0)
        step = torch.arange(found.shape[1], device=found.device)
        role = step.clamp(max=N_ROLES - 1) + N_ROLES * is_answering
        parts = [story.questions[:, int(is_answering), None], seen[:, step, role]]
        return torch.cat(parts, 1).cumsum(1)

    def rank(self, story: EncodedStory, found: Int[Tensor, "batch step"]) -> Ranked:
        """Score all candidates for every step, given the correct facts of earlier steps.

        Args:
            found: Indices of the facts, -1 for none. There is one step more than these.
        """
        sums = self.gather(story, found, is_answering=False)
        n_steps = sums.shape[1]
        query = self.looking(self.dropout(sums + self.steps[:n_steps])).tanh()
        scores = query @ story.candidates.mT  # [batch, step, fact]
        ages = story.ages[:, None].expand_as(scores)
        scores = scores + (query @ self.ages.T).gather(2, ages)
        place = torch.arange(scores.shape[2], device=found.device)
        is_found = torch.zeros_like(scores, dtype=torch.bool)
        for back, table in enumerate(self.distances, start=1):
            if n_steps > back:
                last = found[:, : n_steps - back, None]  # the fact found that many steps before
                apart = (place - last).clamp(-FARTHEST, FARTHEST) + FARTHEST
                near = (query[:, back:] @ table.T).gather(2, apart) * (last >= 0)
                scores = torch.cat([scores[:, :back], scores[:, back:] + near], 1)
        if n_steps > 1:
            is_found[:, 1:] = (place == found[:, :, None]).cumsum(1) > 0
        mask = story.mask[:, None] & ~is_found
        enough = query @ self.nothing  # [batch, step]
        ends = torch.ones_like(mask[:, :, :1])
        return Ranked(torch.cat([scores, enough[..., None]], 2), torch.cat([mask, ends], 2))

    def answer(
        self, story: EncodedStory, found: Int[Tensor, "batch step"]
    ) -> Float[Tensor, "batch d_vocab"]:
        """Score all words as the answer, from the question and the found facts."""
        sums = self.gather(story, found, is_answering=True)[:, -1]
        return self.output(self.dropout(self.thinking(sums).tanh()))

    def forward(self, batch: StoryBatch) -> Answered:
        """Find facts until "no more", and answer."""
        story = self.read(batch)
        n_facts = story.mask.shape[1]
        found = story.ages.new_zeros(len(story.ages), 0)
        is_done = torch.zeros_like(story.mask[:, 0])
        for _ in range(self.max_steps):
            ranked = self.rank(story, found)
            best = ranked.scores[:, -1].masked_fill(~ranked.mask[:, -1], -torch.inf).argmax(-1)
            is_done = is_done | (best == n_facts)
            if bool(is_done.all()):
                break
            found = torch.cat([found, best.where(~is_done, -1)[:, None]], 1)
        looks = torch.arange(n_facts, device=found.device) == found[:, :, None]
        return Answered(self.answer(story, found), looks.to(story.candidates.dtype))
