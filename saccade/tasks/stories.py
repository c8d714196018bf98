"""Stories with questions as batches: each distinct sentence is encoded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.tasks.babi import Question, Sentence
from saccade.tasks.ragged import Ragged
from saccade.tasks.step_seed import generator_of
from saccade.tasks.symbols import PAD
from saccade.tasks.vocabulary import Vocabulary


class StoryBatch(NamedTuple):
    """Some questions side by side, each with the facts before it."""

    facts: Int[Tensor, "batch fact word"]
    """Words of each fact, the oldest first; filled up with PAD."""
    fact_mask: Bool[Tensor, "batch fact"]
    question: Int[Tensor, "batch word"]
    answer: Int[Tensor, " batch"]
    """A word of the vocabulary."""
    support: Int[Tensor, "batch step"]
    """Which facts the answer rests on, in the order of the argument."""
    support_mask: Bool[Tensor, "batch step"]
    task: Int[Tensor, " batch"]


@dataclass(frozen=True)
class Stories:
    """Encoded questions, ready to be cut into batches."""

    sentences: Int[Tensor, "sentence word"]
    """All distinct sentences; the first is empty."""
    facts: Ragged
    """For each question the sentences before it."""
    questions: Int[Tensor, " question"]
    answers: Int[Tensor, " question"]
    support: Ragged
    tasks: Int[Tensor, " question"]

    @classmethod
    def of(
        cls, questions: Sequence[Question], vocabulary: Vocabulary, *, most: int | None = None
    ) -> Stories:
        """Encode questions.

        Args:
            most: how many facts are kept, the latest ones; all unless told.
        """
        numbers: dict[Sentence, int] = {(): 0}
        facts, asked, support = [], [], []
        for question in questions:
            first = max(0, len(question.facts) - most) if most is not None else 0
            facts.append([numbers.setdefault(f, len(numbers)) for f in question.facts[first:]])
            asked.append(numbers.setdefault(question.words, len(numbers)))
            support.append([place - first for place in question.support if place >= first])
        rows = vocabulary.encode_all(numbers)
        return cls(
            sentences=rows.pad(torch.arange(len(rows))).ids,
            facts=Ragged.of(facts),
            questions=torch.tensor(asked, dtype=torch.long),
            answers=torch.tensor(vocabulary.encode(q.answer for q in questions), dtype=torch.long),
            support=Ragged.of(support),
            tasks=torch.tensor([question.task for question in questions], dtype=torch.long),
        )

    def __len__(self) -> int:
        return len(self.questions)

    def batch(self, rows: Int[Tensor, " batch"]) -> StoryBatch:
        """These questions."""
        facts, support = self.facts.pad(rows), self.support.pad(rows)
        return StoryBatch(
            facts=_trimmed(self.sentences[facts.ids]),
            fact_mask=facts.mask,
            question=_trimmed(self.sentences[self.questions[rows]]),
            answer=self.answers[rows],
            support=support.ids,
            support_mask=support.mask,
            task=self.tasks[rows],
        )

    def batches(
        self, size: int, *, seed: int, epoch: int, is_bucketed: bool = False
    ) -> StoryBatches:
        """All questions once, in an order that depends on ``(seed, epoch)`` alone.

        Args:
            is_bucketed: questions after about as many facts go together, for systems that read
                one fact after the other. Numbers of facts are blurred by up to two, so that the
                same questions do not meet in every epoch.
        """
        generator = generator_of(seed, epoch)
        order = torch.randperm(len(self), generator=generator)
        parts = order.split(size)
        if is_bucketed:
            blurred = self.facts.lengths + 2 * torch.rand(len(self), generator=generator)
            parts = blurred.argsort(stable=True).split(size)
            shuffled = torch.randperm(len(parts), generator=generator).tolist()
            parts = [parts[place] for place in shuffled]
        return StoryBatches(self, parts)

    def in_order(self, size: int) -> Iterator[StoryBatch]:
        """All questions once, those after the fewest facts first: for scoring."""
        for part in self.facts.lengths.argsort(stable=True).split(size):
            yield self.batch(part)


@dataclass(frozen=True)
class StoryBatches:
    """The batches of an epoch, each made when it is its turn."""

    stories: Stories
    parts: Sequence[Int[Tensor, " _"]]
    """Which questions are in each."""

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[StoryBatch]:
        return map(self.stories.batch, self.parts)


def _trimmed(sentences: Int[Tensor, "*rows word"]) -> Int[Tensor, "*rows longest"]:
    """Without the columns at the end that hold nothing but PAD."""
    longest = int((sentences != PAD).sum(-1).max()) if sentences.numel() else 0
    return sentences[..., : max(1, longest)]


def story_vocabulary(questions: Iterable[Question]) -> Vocabulary:
    """The words of stories, questions and answers, in the order of the alphabet.

    An answer is a word of its own, also where it is made of several.
    """
    words: set[str] = set()
    for question in questions:
        words.update(question.words, (question.answer,), *question.facts)
    return Vocabulary.build([sorted(words)])
