"""The reader that looks again at every word of the question.

Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 3, figure 1 (b).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from saccade.attention import Memory
from saccade.models.attentive_reader import Asked, AttentiveReader, Looked


class ImpatientReader(AttentiveReader):
    """``r(i) = sum_t s(i, t) y_t + tanh(W_rr r(i - 1))`` for each word i of the question.

    The weights s(i, .) come from a score of y_t with the question's word i and what was read so
    far, r(i - 1); at the end ``g = tanh(W_r r(n) + W_u u)``, and the answer is the label a with the
    largest ``a . g``.

    Where we differ: as `AttentiveReader` does. The query of the score is
    ``u + W_q q_i + W_m r(i - 1)``, with u in it, because the last words of a question say little of
    what is asked; and W_q, W_m and W_rr are zero at first. So it begins as an attentive reader that
    looks with u alone, and learns what looking again adds.
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
        """Look with each word of the question in turn."""
        found = memory.values.new_zeros(len(asked.whole), memory.values.shape[2])
        looks = []
        queries = (asked.whole[:, None] + self.word_query(asked.words)).unbind(1)
        for query, is_word in zip(queries, asked.mask.unbind(1), strict=True):
            attended = self.attention((query + self.read_query(found))[:, None], memory)
            new = attended.context[:, 0] + torch.tanh(self.again(found))
            found = torch.where(is_word[:, None], new, found)
            looks.append(attended.weights * is_word[:, None, None])
        return Looked(found, torch.cat(looks, dim=1))
