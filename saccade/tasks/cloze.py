"""Cloze questions: a document, a sentence with a gap, and which of the document's names fills it.

Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 2: names are replaced by labels
that mean nothing (``@entity3``) and are dealt out anew, so that a question can be answered from its
document only, and not from what is known of a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.errors import TaskError
from saccade.tasks.ragged import Ragged, cut_by_tokens
from saccade.tasks.step_seed import generator_of
from saccade.tasks.symbols import SYMBOLS
from saccade.tasks.vocabulary import Vocabulary

GAP_WORD, LABEL_WORD = "@placeholder", "@entity"
GAP = len(SYMBOLS)
"""The id of the gap in every vocabulary of cloze questions."""
FIRST_LABEL = GAP + 1
"""The id of the first label; the others follow."""


class ClozeQuestion(NamedTuple):
    """One question, in words."""

    document: tuple[str, ...]
    """Names are labels: ``@entity0`` is the first that occurs, and so on."""
    question: tuple[str, ...]
    """One word of it is ``@placeholder``."""
    answer: int | None
    """The number of the label that fills the gap; None where nobody knows."""
    candidates: tuple[int, ...]
    """The labels to choose from."""
    names: tuple[str, ...]
    """What each label stands for; for people to read, never for a model."""
    source: str = ""
    """The book or the file that it comes from."""


class ClozeBatch(NamedTuple):
    """Questions side by side, padded."""

    document: Int[Tensor, "batch pos"]
    document_mask: Bool[Tensor, "batch pos"]
    question: Int[Tensor, "batch question_pos"]
    question_mask: Bool[Tensor, "batch question_pos"]
    candidates: Bool[Tensor, "batch label"]
    answers: Int[Tensor, " batch"]
    rows: Int[Tensor, " batch"]
    """Where each stands among all questions."""


def make_question(
    document: Sequence[str],
    question: Sequence[str],
    *,
    names: Sequence[str],
    answer: str | None,
    candidates: Iterable[str] | None = None,
) -> ClozeQuestion:
    """Put labels in place of names, numbered as they occur.

    Args:
        names: Which words are names.
        candidates: Names to choose from; all that the document has unless given.

    >>> words, gap = ["Ann", "met", "Bob", "."], ["Bob", "thanked", "@placeholder", "."]
    >>> asked = make_question(words, gap, names=["Bob", "Ann"], answer="Ann")
    >>> " ".join(asked.document), " ".join(asked.question), asked.answer
    ('@entity0 met @entity1 .', '@entity1 thanked @placeholder .', 0)
    """
    known, labels = set(names), {}
    for word in (*document, *question, *(candidates or ()), *([] if answer is None else [answer])):
        if word in known:
            labels.setdefault(word, len(labels))
    offered = [name for name in dict.fromkeys(document) if name in labels]
    chosen = {labels[name] for name in (offered if candidates is None else candidates)}
    place = None if answer is None else labels[answer]
    return ClozeQuestion(
        document=tuple(_labelled(document, labels)),
        question=tuple(_labelled(question, labels)),
        answer=place,
        candidates=tuple(sorted(chosen if place is None else {*chosen, place})),
        names=tuple(labels),
    )


def _labelled(words: Sequence[str], labels: dict[str, int]) -> Iterator[str]:
    return (f"{LABEL_WORD}{labels[word]}" if word in labels else word for word in words)


def cloze_vocabulary(
    questions: Iterable[ClozeQuestion], *, n_labels: int, max_size: int
) -> Vocabulary:
    """The symbols, the gap, the labels, then the commonest words of documents and questions."""
    special = (*SYMBOLS, GAP_WORD, *(f"{LABEL_WORD}{number}" for number in range(n_labels)))
    found = Vocabulary.build(part for each in questions for part in (each.document, each.question))
    words = [word for word in found.words if word not in special and LABEL_WORD not in word]
    return Vocabulary((*special, *words)[: max(max_size, len(special))])


@dataclass(frozen=True)
class Cloze:
    """Many questions as ids."""

    document: Ragged
    question: Ragged
    candidates: Bool[Tensor, "row label"]
    answers: Int[Tensor, " row"]

    @classmethod
    def encode(
        cls, questions: Sequence[ClozeQuestion], vocabulary: Vocabulary, *, n_labels: int
    ) -> Cloze:
        """Encode questions, none of which may have more than ``n_labels`` names."""
        if not questions:
            raise TaskError("there is no question", hint="give a text that has names in it")
        most = max(len(each.names) for each in questions)
        if most > n_labels:
            raise TaskError(
                f"a question has {most} names, there are {n_labels} labels",
                hint=f"leave it out, or set n_labels to {most} or more",
            )
        candidates = torch.zeros(len(questions), n_labels, dtype=torch.bool)
        for row, each in enumerate(questions):
            candidates[row, list(each.candidates)] = True
        return cls(
            vocabulary.encode_all(each.document for each in questions),
            vocabulary.encode_all(each.question for each in questions),
            candidates,
            torch.tensor([each.answer or 0 for each in questions]),
        )

    def __len__(self) -> int:
        return len(self.answers)

    def batch(self, rows: Int[Tensor, " batch"]) -> ClozeBatch:
        """These questions, padded, with the labels as they are numbered."""
        document, question = self.document.pad(rows), self.question.pad(rows)
        return ClozeBatch(*document, *question, self.candidates[rows], self.answers[rows], rows)

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Iterator[ClozeBatch]:
        """All questions once, labels dealt out anew; it depends on ``(seed, epoch)`` alone.

        Args:
            tokens: How many words the documents of a batch have at most, padding included.
        """
        generator = generator_of(seed, epoch)
        # Documents of about one length go together; blurred, so that others meet every time.
        lengths = self.document.lengths * (1 + 0.1 * torch.rand(len(self), generator=generator))
        parts = cut_by_tokens(self.document.lengths, lengths.argsort(stable=True), tokens=tokens)
        for part in torch.randperm(len(parts), generator=generator).tolist():
            rows = parts[part]
            dealt = torch.rand(len(rows), self.candidates.shape[1], generator=generator)
            yield deal_labels(self.batch(rows), dealt.argsort(1))

    def in_order(self, *, tokens: int) -> Iterator[ClozeBatch]:
        """All questions once, the shortest first: for judging."""
        lengths = self.document.lengths
        for rows in cut_by_tokens(lengths, lengths.argsort(stable=True), tokens=tokens):
            yield self.batch(rows)


def deal_labels(batch: ClozeBatch, dealt: Int[Tensor, "batch label"]) -> ClozeBatch:
    """Give each row's names other labels: ``dealt[row, old]`` is the new one, a permutation."""
    rows = torch.arange(len(dealt))[:, None]
    return batch._replace(
        document=_dealt(batch.document, dealt),
        question=_dealt(batch.question, dealt),
        candidates=torch.zeros_like(batch.candidates).index_put((rows, dealt), batch.candidates),
        answers=dealt.gather(1, batch.answers[:, None])[:, 0],
    )


def _dealt(ids: Int[Tensor, "batch pos"], dealt: Tensor) -> Int[Tensor, "batch pos"]:
    label = ids - FIRST_LABEL
    is_label = (label >= 0) & (label < dealt.shape[1])
    new = dealt.gather(1, label.clamp(0, dealt.shape[1] - 1)) + FIRST_LABEL
    return torch.where(is_label, new, ids)
