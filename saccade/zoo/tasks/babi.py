"""bAbI: twenty kinds of questions about short stories, with the facts that each answer rests on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.errors import TaskError
from saccade.zoo.tasks.books import read_tar
from saccade.zoo.tasks.datasets import find_data, generator_of
from saccade.zoo.tasks.vocabulary import PAD, Ragged, Vocabulary

Sentence = tuple[str, ...]
Size = Literal["1k", "10k"]
FOLDERS: dict[Size, str] = {"1k": "en", "10k": "en-10k"}
TASKS = tuple(range(1, 21))
VALID_SHARE = 0.1
"""Of the training questions, as in Sukhbaatar et al., 2015 (section 4)."""


class Question(NamedTuple):
    """A question, the facts before it, and its answer."""

    task: int
    facts: tuple[Sentence, ...]
    """The statements of the story so far, the oldest first; questions are not among them."""
    words: Sentence
    """The question itself."""
    answer: str
    """One word; several are joined by commas, as in ``apple,milk`` and ``n,w``."""
    support: tuple[int, ...]
    """Which facts the answer rests on, in the order of the argument."""


class BabiSplits(NamedTuple):
    """The training, validation and test parts."""

    train: list[Question]
    valid: list[Question]
    test: list[Question]


def read_babi(
    size: Size = "1k", data: str | Path | None = None, *, tasks: Sequence[int] = TASKS
) -> BabiSplits:
    """The questions of some tasks, in English.

    Weston et al., 2015 (https://arxiv.org/abs/1502.05698). The last tenth of each task's training
    stories is the validation part; no story is in two parts.
    """
    folder = find_data("babi", data)
    path = next(iter(sorted(folder.glob("*tasks*v1-2.tar.gz"))))
    texts = read_tar(path, f"*{FOLDERS[size]}/qa*.txt")
    splits = BabiSplits([], [], [])
    for task in tasks:
        train, test = (_part(texts, task, part, path) for part in ("train", "test"))
        n_train = round(len(train) * (1 - VALID_SHARE))
        for part, stories in zip(splits, (train[:n_train], train[n_train:], test), strict=True):
            part.extend(question for story in stories for question in story)
    return splits


def parse_stories(text: str, *, task: int = 0, where: str = "the text") -> list[list[Question]]:
    r"""The questions of each story, from lines as bAbI has them.

    A line is a number and a statement, or a number and a question with its answer and the numbers
    of the facts behind it, three fields with tabs between. A story begins at number 1.

    >>> text = "1 Mary went home.\n2 Where is Mary?\thome\t1\n"
    >>> parse_stories(text)[0][0].facts, parse_stories(text)[0][0].support
    ((('mary', 'went', 'home'),), (0,))
    """
    stories: list[list[Question]] = []
    facts: list[Sentence] = []
    places: dict[int, int] = {}  # the place among the facts of each line that is one
    for at, number, rest in _lines(text, where):
        if number == 1 or not stories:
            stories.append([])
            facts, places = [], {}
        sentence, *fields = rest.split("\t")
        if fields:
            support = _support(fields, places, f"line {at} of {where}")
            answer = fields[0].strip().lower()
            stories[-1].append(Question(task, tuple(facts), words_of(sentence), answer, support))
        else:
            places[number] = len(facts)
            facts.append(words_of(sentence))
    if not any(stories):
        raise TaskError(
            f"{where} holds no question: no line has a tab and an answer after it",
            hint="a question is written as: number, text, tab, answer, tab, numbers of facts",
        )
    return stories


@lru_cache(maxsize=100_000)  # a task has thousands of lines and a few hundred sentences
def words_of(sentence: str) -> Sentence:
    """The words, in lower case and without punctuation.

    >>> words_of("Where is Mary?")
    ('where', 'is', 'mary')
    """
    return tuple(re.findall(r"[^\W_]+(?:['-][^\W_]+)*", sentence.lower()))


def _part(texts: dict[str, str], task: int, part: str, path: Path) -> list[list[Question]]:
    start = f"qa{task}_"
    found = [
        name
        for name in texts
        if name.rpartition("/")[2].startswith(start) and name.endswith(f"_{part}.txt")
    ]
    if not found:
        raise TaskError(
            f"{path} has no {part} part of task {task} in this size",
            hint="leave the task out, or take the archive from its makers",
        )
    return parse_stories(texts[found[0]], task=task, where=found[0])


def _lines(text: str, where: str) -> Iterator[tuple[int, int, str]]:
    """Each line's place in the file, its own number, and what follows it."""
    for at, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        number, _, rest = line.strip().partition(" ")
        if not number.isdecimal() or not words_of(rest.split("\t")[0]):
            raise TaskError(
                f"line {at} of {where} is no line of a story: {line[:60]!r}",
                hint="expected a number, a space and a sentence",
            )
        yield at, int(number), rest


def _support(fields: list[str], places: dict[int, int], where: str) -> tuple[int, ...]:
    numbers = fields[1].split() if len(fields) > 1 else []
    wrong = [each for each in numbers if not each.isdecimal() or int(each) not in places]
    if wrong or not fields[0].strip():
        what = (
            f"names the fact {wrong[0]}, which is no fact before it" if wrong else "has no answer"
        )
        raise TaskError(f"the question in {where} {what}", hint="is the file whole?")
    # Some arguments use a fact twice; it is listed once.
    return tuple(dict.fromkeys(places[int(each)] for each in numbers))


# Stories with questions as batches: each distinct sentence is encoded once.


class StoryBatch(NamedTuple):
    """A batch of questions, each with the facts before it."""

    facts: Int[Tensor, "batch fact word"]
    """Words of each fact, the oldest first; padded with PAD."""
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
            most: how many facts are kept, the latest ones; all by default.
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
        """The batch of the given questions."""
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
        """All questions once, in an order that depends only on ``(seed, epoch)``.

        Args:
            is_bucketed: batches group questions with about the same number of facts, for systems
                that read one fact after the other. The numbers are perturbed by up to two, so that
                batches differ between epochs.
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
        """All questions once, those with the fewest facts first: for evaluation."""
        for part in self.facts.lengths.argsort(stable=True).split(size):
            yield self.batch(part)


@dataclass(frozen=True)
class StoryBatches:
    """The batches of an epoch, each generated on demand."""

    stories: Stories
    parts: Sequence[Int[Tensor, " _"]]
    """Which questions are in each."""

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[StoryBatch]:
        return map(self.stories.batch, self.parts)


def _trimmed(sentences: Int[Tensor, "*rows word"]) -> Int[Tensor, "*rows longest"]:
    """Without the last columns that hold only PAD."""
    longest = int((sentences != PAD).sum(-1).max()) if sentences.numel() else 0
    return sentences[..., : max(1, longest)]


def story_vocabulary(questions: Iterable[Question]) -> Vocabulary:
    """The words of stories, questions and answers, in alphabetical order.

    An answer is one vocabulary entry, also where it consists of several words.
    """
    words: set[str] = set()
    for question in questions:
        words.update(question.words, (question.answer,), *question.facts)
    return Vocabulary.build([sorted(words)])
