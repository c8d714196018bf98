"""Cloze questions: a document, a sentence with a gap, and which of the document's names fills it.

Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 2: names are replaced by labels
without meaning (``@entity3``), permuted at random, so that a question can be answered only from its
document, not from knowledge about a name.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks.books import read_text
from saccade.zoo.tasks.datasets import find_data, generator_of
from saccade.zoo.tasks.text import split_sentences
from saccade.zoo.tasks.vocabulary import SYMBOLS, Ragged, Vocabulary, cut_by_tokens

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
    """The number of the label that fills the gap; None where it is unknown."""
    candidates: tuple[int, ...]
    """The labels to choose from."""
    names: tuple[str, ...]
    """What each label stands for; for display, never an input of a model."""
    source: str = ""
    """The book or the file that it comes from."""


class ClozeBatch(NamedTuple):
    """A padded batch of questions."""

    document: Int[Tensor, "batch pos"]
    document_mask: Bool[Tensor, "batch pos"]
    question: Int[Tensor, "batch question_pos"]
    question_mask: Bool[Tensor, "batch question_pos"]
    candidates: Bool[Tensor, "batch label"]
    answers: Int[Tensor, " batch"]
    rows: Int[Tensor, " batch"]
    """The index of each among all questions."""


def make_question(
    document: Sequence[str],
    question: Sequence[str],
    *,
    names: Sequence[str],
    answer: str | None,
    candidates: Iterable[str] | None = None,
) -> ClozeQuestion:
    """Replace names by labels, numbered in order of occurrence.

    Args:
        names: Which words are names.
        candidates: Names to choose from; all names of the document by default.

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
    """The symbols, the gap, the labels, then the most frequent words of documents and questions."""
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
        """The given questions, padded, with labels in order of occurrence."""
        document, question = self.document.pad(rows), self.question.pad(rows)
        return ClozeBatch(*document, *question, self.candidates[rows], self.answers[rows], rows)

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Iterator[ClozeBatch]:
        """All questions once, with permuted labels; depends only on ``(seed, epoch)``.

        Args:
            tokens: Maximum number of document tokens in a batch, padding included.
        """
        generator = generator_of(seed, epoch)
        # Documents of similar length share a batch; lengths are perturbed, so that batches differ.
        lengths = self.document.lengths * (1 + 0.1 * torch.rand(len(self), generator=generator))
        parts = cut_by_tokens(self.document.lengths, lengths.argsort(stable=True), tokens=tokens)
        for part in torch.randperm(len(parts), generator=generator).tolist():
            rows = parts[part]
            dealt = torch.rand(len(rows), self.candidates.shape[1], generator=generator)
            yield deal_labels(self.batch(rows), dealt.argsort(1))

    def in_order(self, *, tokens: int) -> Iterator[ClozeBatch]:
        """All questions once, the shortest first: for evaluation."""
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


# The question files of CNN and the Daily Mail, as published by DeepMind.
#
# Hermann et al., 2015 (https://arxiv.org/abs/1506.03340), section 2: a news article is the
# document, and one of its summary points, with a name removed, is the question. A file has an
# address, the article, the question, the answer, and what each label stands for, with an empty
# line between any two of them. Names are labels already; they are renumbered in order of occurrence
# (Chen et al., 2016, https://arxiv.org/abs/1606.02858, section 4.1).

PARTS = ("training", "validation", "test")


def read_question_file(path: str | Path) -> ClozeQuestion:
    """The question of one ``.question`` file; its candidates are the names of the article."""
    return parse_question(read_text(Path(path)), Path(path))


def parse_question(text: str, path: Path) -> ClozeQuestion:
    """The same from the text of a file."""
    parts = text.rstrip("\n").split("\n\n", maxsplit=4)
    if len(parts) < 4:
        raise _refused(path, f"expected five parts with empty lines between, got {len(parts)}")
    document, question, answer = (part.split() for part in parts[1:4])
    if question.count(GAP_WORD) != 1:
        raise _refused(path, f"its question has {question.count(GAP_WORD)} gaps, expected one")
    if len(answer) != 1 or not answer[0].startswith(LABEL_WORD):
        raise _refused(path, f"its answer is {' '.join(answer)!r}, expected one {LABEL_WORD}")
    meant = dict(line.split(":", 1) for line in "".join(parts[4:]).split("\n") if ":" in line)
    labels = {word for word in (*document, *question, *answer) if word.startswith(LABEL_WORD)}
    made = make_question(document, question, names=sorted(labels), answer=answer[0])
    called = tuple(meant.get(name, name) for name in made.names)
    return made._replace(names=called, source=path.stem)


def read_news_cloze(folder: str | Path, part: str = "training") -> list[ClozeQuestion]:
    """All questions of a part of ``cnn/questions`` or ``dailymail/questions``."""
    folder = Path(folder)
    if part not in PARTS:
        raise TaskError(f"no part named {part!r}", hint=f"one of {', '.join(PARTS)}")
    files = sorted((folder / part).glob("*.question"))
    if not files:
        raise TaskError(
            f"{folder / part} has no .question files",
            hint="name the folder that holds training, validation and test",
        )
    return [read_question_file(path) for path in files]


def _refused(path: Path, why: str) -> TaskError:
    return TaskError(
        f"{path} is no question file: {why}",
        hint="an address, the article, the question, the answer and the names, an empty line apart",
    )


# Cloze questions out of raw books: 20 sentences, the 21st with a name removed, ten candidates.
#
# The form is that of the Children's Book Test (Hill et al., 2016, https://arxiv.org/abs/1511.02301,
# section 2), its class of named entities; names become labels as in Hermann et al., 2015
# (https://arxiv.org/abs/1506.03340), section 2.
#
# Where we differ:
#
# - There a tagger finds the names. Here a word is a name if a book capitalises it in the middle of
# sentences and almost never writes it in lower case.
# - There names stay as they are. Here they are labels, as in the news questions; otherwise a model
# could learn the characters of a book.
# - Questions whose answer also occurs elsewhere in the sentence are left out: it would reveal it.

# Prose with people in it. Verse and plays have no sentences that make questions.
VALID_BOOKS = ("chesterton-thursday",)
TEST_BOOKS = ("austen-persuasion", "carroll-alice")
TRAIN_BOOKS = (
    *("austen-emma", "austen-sense", "bryant-stories", "chesterton-ball"),
    *("chesterton-brown", "edgeworth-parents", "melville-moby_dick"),
)
N_SENTENCES = 20
N_CANDIDATES = 10
SHORTEST = 5  # minimum words of a question: fewer give no information

_WORDS = re.compile(rf"{GAP_WORD}|[^\W\d_]+|\d+|[^\w\s]")
# Titles before a name; they stay in the text.
TITLES = re.compile(
    "Admiral|Aunt|Brother|Captain|Colonel|Count|Countess|Dame|Doctor|Dr|Duke|Earl|Esq|Father|"
    "General|Inspector|King|Lady|Lord|Ma|Madame|Major|Marquis|Master|Messrs|Miss|Mister|Monsieur|"
    "Mr|Mrs|Ms|Mother|Prince|Princess|Professor|Queen|Rev|Sir|Sister|Squire|St|Uncle"
)
FEWEST = 3  # how often a name must occur in the middle of a sentence
MOST_SMALL = 0.1  # how often it may occur in lower case, relative to that


class ClozeSplits(NamedTuple):
    """The training, validation and test parts: no book is in two of them."""

    train: list[ClozeQuestion]
    valid: list[ClozeQuestion]
    test: list[ClozeQuestion]


def read_book_cloze(data: str | Path | None = None) -> ClozeSplits:
    """The questions of ten books of Project Gutenberg; a book that is missing is left out."""
    return ClozeSplits(*(read_books(part, data) for part in ("train", "valid", "test")))


def read_books(
    part: Literal["train", "valid", "test"], data: str | Path | None = None
) -> list[ClozeQuestion]:
    """The questions of one part."""
    folder = find_data("gutenberg", data)
    books = {"train": TRAIN_BOOKS, "valid": VALID_BOOKS, "test": TEST_BOOKS}[part]
    questions = []
    for book in books:
        path = folder / f"{book}.txt"
        if path.is_file() or path.with_name(f"{book}.txt.gz").is_file():
            found = book_questions(read_text(path, encoding="latin-1"))
            questions += [each._replace(source=book) for each in found]
    if not questions:
        raise TaskError(
            f"{folder} has none of the books {', '.join(books)}, or they have no names",
            hint="all three parts are needed: training, validation and test",
        )
    return questions


def book_questions(text: str, *, seed: int = 0) -> list[ClozeQuestion]:
    """Every question that a book has: one for each name in a sentence that occurred shortly before.

    Args:
        seed: Seed of the candidates, if there are more than ten names, or fewer.
    """
    sentences = [split_plain(sentence) for sentence in split_sentences(text)]
    names = find_names(sentences)
    sentences = [lower_all_but(sentence, names) for sentence in sentences]
    chance, every = random.Random(seed), sorted(names)
    questions = []
    for place in range(N_SENTENCES, len(sentences)):
        asked = sentences[place]
        counts = Counter(word for word in asked if word in names)
        if not counts or len(asked) < SHORTEST:
            continue
        document = [word for each in sentences[place - N_SENTENCES : place] for word in each]
        present = [word for word in dict.fromkeys(document) if word in names]
        for answer in [name for name in counts if counts[name] == 1 and name in present]:
            others = [name for name in present if name != answer]
            missing = [name for name in every if name not in present and name not in counts]
            chosen = _some(others, N_CANDIDATES - 1, chance)
            chosen += _some(missing, N_CANDIDATES - 1 - len(chosen), chance)
            gap = [GAP_WORD if word == answer else word for word in asked]
            questions.append(
                make_question(
                    document,
                    gap,
                    names=every,
                    answer=answer,
                    candidates=[answer, *chosen],
                )
            )
    return questions


def question_of_text(text: str) -> ClozeQuestion:
    """The question that a user asks: some sentences, the last with ``@placeholder`` in it.

    Every word with a capital in the middle of a sentence counts as a name.

    >>> asked = question_of_text("Then Ann met Bob. He gave Ann a book. Then @placeholder read it.")
    >>> asked.names, asked.answer
    (('Ann', 'Bob'), None)
    """
    sentences = [split_plain(sentence) for sentence in split_sentences(text)]
    if not sentences or sentences[-1].count(GAP_WORD) != 1 or len(sentences) < 2:
        raise UsageError(
            f"this text has no question: expected {GAP_WORD} once, in the last of its sentences",
            hint=f"for example 'Then Ann met Bob. He gave Ann a book. Then {GAP_WORD} read it.'",
        )
    names = find_names(sentences, fewest=1)
    document = [word for each in sentences[:-1] for word in each]
    if not any(word in names for word in document):
        raise UsageError(
            "this text has no names to choose from",
            hint="a name has a capital, and stands in the middle of a sentence at least once",
        )
    asked = lower_all_but(sentences[-1], names)
    return make_question(lower_all_but(document, names), asked, names=sorted(names), answer=None)


def split_plain(sentence: str) -> list[str]:
    """Words, numbers and single marks; the ``'s`` of a name is three of them.

    >>> split_plain("Emma's visit--at last!")
    ['Emma', "'", 's', 'visit', '-', '-', 'at', 'last', '!']
    """
    return _WORDS.findall(sentence)


def find_names(sentences: Iterable[Sequence[str]], *, fewest: int = FEWEST) -> frozenset[str]:
    """The words that a text capitalises where only a name has a capital."""
    capital, small = Counter(), Counter()
    for sentence in sentences:
        is_open, before = True, ""  # after a stop or a quote any word may have a capital
        for word in sentence:
            if not word[0].isalpha():
                is_open = word not in ",;" and not (word == "." and TITLES.fullmatch(before))
            elif word.islower():
                small[word] += 1
                is_open = False
            else:
                capital[word] += not is_open and len(word) > 1 and word[1:].islower()
                is_open = False
            before = word
    return frozenset(
        word
        for word, n in capital.items()
        if n >= fewest and not TITLES.fullmatch(word) and small[word.lower()] <= MOST_SMALL * n
    )


def lower_all_but(words: Sequence[str], names: frozenset[str]) -> list[str]:
    """Lower case everywhere except in names."""
    return [word if word in names else word.lower() for word in words]


def _some(names: Sequence[str], n: int, chance: random.Random) -> list[str]:
    return chance.sample(names, min(n, len(names))) if n > 0 else []
