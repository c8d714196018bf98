"""bAbI: twenty kinds of questions about short stories, with the facts that each answer rests on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from saccade.errors import TaskError
from saccade.tasks.fetch import find_data
from saccade.tasks.text_files import read_tar

Sentence = tuple[str, ...]
Size = Literal["1k", "10k"]
FOLDERS: dict[Size, str] = {"1k": "en", "10k": "en-10k"}
TASKS = tuple(range(1, 21))
VALID_SHARE = 0.1
"""Of the training questions, as in Sukhbaatar et al., 2015 (section 4)."""


class Question(NamedTuple):
    """A question, all that was told before it, and its answer."""

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
    """What to learn from, what to choose by, what to report."""

    train: list[Question]
    valid: list[Question]
    test: list[Question]


def read_babi(
    size: Size = "1k", data: str | Path | None = None, *, tasks: Sequence[int] = TASKS
) -> BabiSplits:
    """The questions of some tasks, in English.

    Weston et al., 2015 (https://arxiv.org/abs/1502.05698). The last tenth of each task's training
    stories is held back to choose by; no story is in two parts.
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
    """The words, in small letters and without punctuation.

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
        what = f"names the fact {wrong[0]}, which is none before it" if wrong else "has no answer"
        raise TaskError(f"the question in {where} {what}", hint="is the file whole?")
    # Some arguments use a fact twice; finding it once is enough.
    return tuple(dict.fromkeys(places[int(each)] for each in numbers))
