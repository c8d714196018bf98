"""The Deep LSTM Reader, a reader without attention, and frequency baselines.

Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 3, "The Deep LSTM Reader".
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.cell import weights_of
from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.cells.stacks import make_stack
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.models.attentive_reader import word_vectors
from saccade.zoo.models.sequence_reader import influence
from saccade.zoo.tasks.cloze import FIRST_LABEL, GAP, ClozeBatch
from saccade.zoo.tasks.vocabulary import EOS, PAD, Padded


class DeepLstmReader(nn.Module):
    """Read document, end symbol and question in one sequence, then answer.

    ``x'(t, k) = [x(t), y(t, k - 1)]``: layer k also reads the word itself, and the answer is
    computed from the last outputs of all layers, concatenated: ``g = W [y(n, 1), ..., y(n, K)]``,
    then the label a with the largest ``a . g``.

    Where we differ: the input goes to the next layer only (with two layers, as here and in the
    paper's best, that is the same); input and output embeddings of labels are tied, and the softmax
    is over candidates only, as in `AttentiveReader`; dropout. And it is initialised to count names
    (`count_names`), as the attentive reader is initialised to predict what it attends to: our
    questions are few, and from random weights it stayed at chance for thousands of steps.
    """

    def __init__(
        self,
        *,
        d_vocab: int,
        n_labels: int,
        d_embed: int = 64,
        d_hidden: int = 64,
        n_layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.n_labels = n_labels
        self.embed = word_vectors(d_vocab, d_embed)
        self.stack = make_stack(
            "lstm", d_embed, d_hidden, n_layers=n_layers, dropout=dropout, skip=1
        )
        self.from_end = nn.Linear(n_layers * d_hidden, d_embed)
        self.dropout = Dropout(dropout)
        self.count_names()

    @torch.no_grad()
    def count_names(self) -> None:
        """Initialise the weights so that the answer is about the most frequent name.

        In the layers that read words, input gates are closed except for labels, which share a
        direction; forget gates are open; and the output is the sum of what entered.
        """
        d_embed = self.embed.embedding_dim
        mark = functional.normalize(torch.randn(d_embed), dim=0)
        self.embed.weight[FIRST_LABEL : FIRST_LABEL + self.n_labels] += 2 * mark
        for cell, answered in zip(
            self.stack.layers[:2],
            self.from_end.weight.chunk(len(self.stack.layers), 1),
            strict=False,
        ):
            assert isinstance(cell, LstmCell), type(cell).__name__
            weights = weights_of(cell.kernel)
            weights.of_input.mul_(0.1)
            weights.of_state.mul_(0.1)
            i, _, g, _ = (gate[:, -d_embed:] for gate in weights.of_input.chunk(4))
            i += 2 * mark
            nn.init.orthogonal_(g)
            answered.copy_(g.T)
            i_bias, f_bias, _, _ = weights.input_bias.chunk(4)
            i_bias.fill_(-4.0)  # the gate is 0.02 for a word, and 0.5 for a label, which adds 4
            f_bias.fill_(6.0)  # keeps values for about 400 words

    def answer(
        self, words: Float[Tensor, "batch pos d_embed"], mask: Bool[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch label"]:
        """Logits of the labels, from document and question as vectors."""
        states = self.stack.unroll(self.dropout(words), mask=mask).state
        ends = torch.cat([state.hidden for state in states], dim=-1)  # [batch, layers * d_hidden]
        labels = self.embed.weight[FIRST_LABEL : FIRST_LABEL + self.n_labels]
        return self.dropout(torch.tanh(self.from_end(self.dropout(ends)))) @ labels.T

    def forward(self, batch: ClozeBatch) -> Float[Tensor, "batch label"]:
        """Logits of the labels."""
        ids, mask = joined(batch)
        return self.answer(self.embed(ids), mask)

    def influence_on_answer(self, batch: ClozeBatch) -> Float[Tensor, "batch step pos"]:
        """The influence of each word of the document on the answer to one question."""
        assert len(batch.answers) == 1, "one question at a time"
        ids, mask = joined(batch)
        with torch.enable_grad():
            words = self.embed(ids).detach().requires_grad_()
            logits = self.answer(words, mask).masked_fill(~batch.candidates, -torch.inf)
            shares = influence(logits.log_softmax(-1).amax(-1), words)  # [1, 1, all words]
        return shares[:, :, : batch.document.shape[1]]


def joined(batch: ClozeBatch) -> Padded:
    """Document, EOS and question in one row, with the padding of both at the end.

    >>> import torch
    >>> document, question = torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([[4, 9], [4, 0]])
    >>> none = torch.zeros(2, 1)
    >>> joined(ClozeBatch(document, document > 0, question, question > 0, none, none, none)).ids
    tensor([[5, 6, 7, 2, 4, 9],
            [8, 2, 4, 0, 0, 0]])
    """
    sign = batch.document.new_full((len(batch.document), 1), EOS)
    ids = torch.cat([batch.document, sign, batch.question], dim=1)
    mask = torch.cat([batch.document_mask, sign > 0, batch.question_mask], dim=1)
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)  # real words first, in order
    mask = mask.gather(1, order)
    return Padded(ids.gather(1, order).where(mask, PAD), mask)


# Baselines: the most frequent name, and the last one.
#
# Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 3.1 and table 5, "maximum
# frequency" and "exclusive frequency"; the last mention is a third baseline.

ClozeRule = Literal["max-frequency", "exclusive-frequency", "nearest"]


class ClozeBaseline(nn.Module):
    """Choose a label by a rule; there are no parameters.

    - ``max-frequency``: the most frequent label of the document;
    - ``exclusive-frequency``: the same, excluding labels of the question;
    - ``nearest``: the last label before the gap, in the document or in the question.

    Ties go to the label that occurs last.
    """

    def __init__(self, rule: ClozeRule, *, n_labels: int) -> None:
        super().__init__()
        self.rule = rule
        self.n_labels = n_labels

    def forward(self, batch: ClozeBatch) -> Float[Tensor, "batch label"]:
        """A score for each label."""
        before_gap = (batch.question == GAP).cumsum(1) == 0
        words = torch.cat([batch.document, batch.question.where(before_gap, GAP)], dim=1)
        n = words.shape[1]
        at = self.labels(words)  # [batch, words, label]
        place = torch.arange(1, n + 1, device=words.device)[:, None]
        last = (at * place).amax(1) / (n + 1)  # below 1: breaks ties
        if self.rule == "nearest":
            return last
        counts = self.labels(batch.document).sum(1) + last
        if self.rule == "exclusive-frequency":
            counts = counts - (n + 1) * self.labels(batch.question).amax(1)
        return counts

    def labels(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos label"]:
        """1 where a word is this label, else 0."""
        label = ids - FIRST_LABEL
        is_label: Bool[Tensor, "batch pos"] = (label >= 0) & (label < self.n_labels)
        one_hot = functional.one_hot(label.clamp(0, self.n_labels - 1), self.n_labels)
        return (one_hot * is_label[:, :, None]).float()

    def looks(self, batch: ClozeBatch) -> Float[Tensor, "batch 1 pos"]:
        """The positions of the chosen label in the document; for ``nearest``, only the last."""
        logits = self(batch).masked_fill(~batch.candidates, -torch.inf)
        chosen = logits.argmax(-1)[:, None] + FIRST_LABEL
        at = (batch.document == chosen).float()  # [batch, pos]
        if self.rule == "nearest":
            at = at * (at.flip(1).cumsum(1).flip(1) == 1)
        return (at / at.sum(1, keepdim=True).clamp_min(1))[:, None]
