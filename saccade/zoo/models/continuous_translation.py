"""Recurrent continuous translation: a convolutional sentence encoder and an RNN decoder.

Kalchbrenner and Blunsom, "Recurrent Continuous Translation Models", EMNLP 2013
(https://aclanthology.org/D13-1176), the model they call RCTM I: the first translator with only
continuous representations, without alignments or phrases.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.simple import ElmanCell
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.vocabulary import Padded


class SentenceModel(nn.Module):
    """Convolve the columns of a sentence, level by level, until one is left.

    Section 3.2 of the paper. At each level every feature is convolved with its own kernel, of width
    2, then 3, then 4, ..., and goes through tanh: a column then represents that many words. Where
    fewer columns are left than the kernel is wide, its first entries are used. Beyond the last
    kernel the last one is reused, so that no sentence is too long.
    """

    def __init__(self, d_model: int, *, n_kernels: int = 8) -> None:
        super().__init__()
        widths = range(2, n_kernels + 2)
        # Sums of w products with a variance of 1/w each: a column keeps its variance from level to
        # level.
        self.kernels = nn.ParameterList(torch.randn(d_model, 1, w) / w**0.5 for w in widths)

    def forward(
        self, words: Float[Tensor, "batch pos d_model"], mask: Bool[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch d_model"]:
        """One vector per sentence."""
        length = mask.sum(1).clamp_min(1)
        columns = (words * mask[:, :, None]).mT  # [batch, d_model, pos]
        level = 0
        while columns.shape[2] > 1:
            kernel = self.kernels[min(level, len(self.kernels) - 1)]
            # Zeros beyond the end, so that a kernel that crosses it is truncated.
            padded = functional.pad(columns, (0, kernel.shape[2] - 1))
            folded = torch.tanh(functional.conv1d(padded, kernel, groups=len(kernel)))
            is_done = (length == 1)[:, None, None]
            length = (length - kernel.shape[2] + 1).clamp_min(1)
            left = torch.arange(int(length.max()), device=length.device)
            kept = torch.where(is_done, columns, folded)[:, :, : len(left)]
            columns = kept * (left < length[:, None])[:, None]
            level += 1
        return columns[:, :, 0]


class ContinuousTranslation(nn.Module):
    """``h_t = tanh(I y_(t-1) + R h_(t-1) + S e)``: a language model conditioned on the source e.

    Section 4.1. The sentence vector e is added at every step. As in the paper the recurrent network
    is a plain one, and the source's word order enters only through the convolutions. Where we
    differ: one softmax over all words in place of word classes, which were for speed; and the paper
    uses its models to rescore the translations of another system
    (`saccade.zoo.decoding.ensemble.rescore` does), whereas this one can also be decoded.
    """

    def __init__(
        self,
        *,
        n_source: int,
        n_target: int,
        d_model: int = 256,
        n_kernels: int = 8,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.source_embed = nn.Embedding(n_source, d_model)
        self.target_embed = nn.Embedding(n_target, d_model)
        self.sentence = SentenceModel(d_model, n_kernels=n_kernels)
        # A step reads the previous word and e concatenated: I and S are halves of one matrix.
        self.cell = ElmanCell(2 * d_model, d_model)
        self.output = nn.Linear(d_model, n_target)
        self.dropout = Dropout(dropout)

    def read(
        self, source: Int[Tensor, "batch source_pos"], mask: Bool[Tensor, "batch source_pos"]
    ) -> Float[Tensor, "batch d_model"]:
        """The sentence vector e of each source."""
        return self.sentence(self.dropout(self.source_embed(source)), mask)

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real target positions, with teacher forcing."""
        sentence = self.read(batch.source, batch.source_mask)  # [batch, d_model]
        words = self.dropout(self.target_embed(batch.target_in))  # [batch, pos, d_model]
        everywhere = sentence[:, None].expand_as(words)
        hidden = self.cell.unroll(torch.cat([words, everywhere], dim=-1)).outputs
        return self.output(self.dropout(hidden[batch.target_mask]))

    def start(self, source: Padded) -> Started:
        """Encode the source as a vector."""
        sentence = self.read(source.ids, source.mask)
        return Started(sentence, self.cell.start(len(sentence)))

    def step(
        self,
        tokens: Int[Tensor, " row"],
        memory: Float[Tensor, "sentence d_model"],
        state: Float[Tensor, "row d_model"],
    ) -> Stepped:
        """Predict what follows ``tokens``."""
        sentence = memory.repeat_interleave(len(tokens) // len(memory), dim=0)  # [row, d_model]
        inputs = torch.cat([self.target_embed(tokens), sentence], dim=-1)
        hidden, state = self.cell.step(inputs, state)
        return Stepped(self.output(hidden).log_softmax(-1), state)
