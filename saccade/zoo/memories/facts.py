"""Sentences as facts to attend to: position-weighted bags of words, and the age of each fact."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

PAD = 0
"""Padding; its vector is zero in every embedding."""
SPREAD = 0.1
"""Standard deviation of the initial weights: Sukhbaatar et al., section 4.2."""


def position_weights(n_words: int, d_embed: int) -> Float[Tensor, "word d_embed"]:
    """The weight of each word in each dimension, so that a sum over words depends on their order.

    Sukhbaatar et al., 2015 (https://arxiv.org/abs/1503.08895), section 4.1, "position encoding":
    ``l_kj = (1 - j/J) - (k/d)(1 - 2j/J)`` for word j of J and dimension k of d. Ours is twice that
    and centred, ``1 + (2j - J - 1)/J * (2k - d - 1)/d``, so that the mean weight is 1 and a
    sentence of one word is that word; the authors' code does the same.

    >>> position_weights(3, 2)
    tensor([[1.3333, 0.6667],
            [1.0000, 1.0000],
            [0.6667, 1.3333]])
    """
    return 1 + _centred(n_words)[:, None] * _centred(d_embed)


def fact_ages(mask: Bool[Tensor, "batch fact"], *, noise: float = 0.0) -> Int[Tensor, "batch fact"]:
    """How many facts came after each one: the latest has age 0.

    Sukhbaatar et al., 2015, section 4.1, "temporal encoding", and "random noise": in training,
    empty facts are inserted. They add 10 %; here each fact is followed by one with probability
    ``noise``.

    >>> fact_ages(torch.tensor([[True, True, True], [True, False, False]]))
    tensor([[2, 1, 0], [0, 0, 0]])
    """
    steps = mask.long()
    if noise > 0:
        steps = steps + ((torch.rand(mask.shape, device=mask.device) < noise) & mask)
    after = steps.flip(1).cumsum(1).flip(1)
    return (after - 1).clamp(min=0)


class SentenceBags(nn.Module):
    """Sentences as sums of word vectors, in several embeddings at once.

    One `embedding_bag` serves all embeddings and both parts of the position encoding:
    ``sum_j x_j + c_k sum_j c_j x_j`` with c the centred positions.

    Args:
        n_tables: Number of embeddings.
        is_ordered: Weight words by `position_weights`; otherwise a plain bag of words.
        spread: Standard deviation of the initial embeddings.

    >>> bags = SentenceBags(n_words=7, n_tables=2, d_embed=5)
    >>> bags(torch.tensor([[3, 4, 0], [0, 0, 0]])).shape
    torch.Size([2, 2, 5])
    """

    _dims: Float[Tensor, " d_embed"]

    def __init__(
        self,
        *,
        n_words: int,
        n_tables: int,
        d_embed: int,
        is_ordered: bool = True,
        spread: float = SPREAD,
    ) -> None:
        super().__init__()
        self.n_tables, self.d_embed = n_tables, d_embed
        self.is_ordered = is_ordered
        # PAD has no row: it must stay zero in training.
        self.words = nn.Parameter(spread * torch.randn(n_words - 1, n_tables * d_embed))
        self.register_buffer("_dims", _centred(d_embed), persistent=False)

    def table(self) -> Float[Tensor, "d_vocab d_tables"]:
        """The embeddings of all words, concatenated over tables."""
        return functional.pad(self.words, (0, 0, 1, 0))

    def forward(
        self, sentences: Int[Tensor, "sentence word"]
    ) -> Float[Tensor, "sentence table d_embed"]:
        """Encode sentences padded with PAD."""
        real, n = sentences != PAD, len(sentences)
        parts = [real.to(self.words.dtype)]
        if self.is_ordered:
            parts.append(_positions(real))
        lengths = real.sum(1).repeat(len(parts))
        sums = functional.embedding_bag(
            (sentences[real] - 1).repeat(len(parts)),
            self.words,
            lengths.cumsum(0) - lengths,
            mode="sum",
            per_sample_weights=torch.cat([part[real] for part in parts]),
        ).view(len(parts), n, self.n_tables, self.d_embed)
        return torch.addcmul(sums[0], sums[1], self._dims) if self.is_ordered else sums[0]


def scatter_facts(
    encoded: Float[Tensor, "n_real ..."], mask: Bool[Tensor, "batch fact"]
) -> Float[Tensor, "batch fact ..."]:
    """Scatter values of the real facts back to their positions; zeros elsewhere."""
    padded = encoded.new_zeros(*mask.shape, *encoded.shape[1:])
    return padded.index_put((mask,), encoded)


def _centred(n: int) -> Float[Tensor, " n"]:
    """``(2i - n - 1) / n`` for i from 1 to n: evenly spaced, symmetric about 0."""
    return (2 * torch.arange(1, n + 1) - n - 1) / n


def _positions(real: Bool[Tensor, "sentence word"]) -> Float[Tensor, "sentence word"]:
    """The same over the real words of each sentence."""
    n = real.sum(1, keepdim=True).clamp(min=1)
    place = torch.arange(1, real.shape[1] + 1, device=real.device)
    return (2 * place - n - 1) / n
