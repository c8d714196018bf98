"""Cloze questions out of raw books: 20 sentences, the 21st with a name removed, ten candidates.

The form is that of the Children's Book Test (Hill et al., 2016, https://arxiv.org/abs/1511.02301,
section 2), its class of named entities; names become labels as in Hermann et al., 2015
(https://arxiv.org/abs/1506.03340), section 2.

Where we differ:

- There a tagger finds the names. Here a word is a name if a book writes it with a capital in the
  middle of sentences and hardly ever without.
- There names stay as they are. Here they are labels, as they would be in the news questions, or one
  could learn who is who in a book.
- Questions whose answer also stands elsewhere in the sentence are left out: it would give it away.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from saccade.errors import TaskError, UsageError
from saccade.tasks.cloze import GAP_WORD, ClozeQuestion, make_question
from saccade.tasks.fetch import find_data
from saccade.tasks.sentences import split_sentences
from saccade.tasks.text_files import read_text

# Prose with people in it. Verse and plays have no sentences that could be asked for.
VALID_BOOKS = ("chesterton-thursday",)
TEST_BOOKS = ("austen-persuasion", "carroll-alice")
TRAIN_BOOKS = (
    *("austen-emma", "austen-sense", "bryant-stories", "chesterton-ball"),
    *("chesterton-brown", "edgeworth-parents", "melville-moby_dick"),
)
N_SENTENCES = 20
N_CANDIDATES = 10
SHORTEST = 5  # words of a question: with fewer there is nothing to answer it by

_WORDS = re.compile(rf"{GAP_WORD}|[^\W\d_]+|\d+|[^\w\s]")
# Words that stand before a name and say who it may be; they stay in the text.
TITLES = re.compile(
    "Admiral|Aunt|Brother|Captain|Colonel|Count|Countess|Dame|Doctor|Dr|Duke|Earl|Esq|Father|"
    "General|Inspector|King|Lady|Lord|Ma|Madame|Major|Marquis|Master|Messrs|Miss|Mister|Monsieur|"
    "Mr|Mrs|Ms|Mother|Prince|Princess|Professor|Queen|Rev|Sir|Sister|Squire|St|Uncle"
)
FEWEST = 3  # times that a name stands in the middle of a sentence
MOST_SMALL = 0.1  # for each such time, how often the word may stand without its capital


class ClozeSplits(NamedTuple):
    """What to learn from, what to choose by, what to report: no book is in two of them."""

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
            hint="all three parts are needed: to learn, to choose and to report",
        )
    return questions


def book_questions(text: str, *, seed: int = 0) -> list[ClozeQuestion]:
    """Every question that a book has: one for each name in a sentence that occurred shortly before.

    Args:
        seed: Of the candidates, if there are more than ten names, or fewer.
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
    """The words that a text writes with a capital where nothing but a name asks for one."""
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
    """Small letters everywhere but in names."""
    return [word if word in names else word.lower() for word in words]


def _some(names: Sequence[str], n: int, chance: random.Random) -> list[str]:
    return chance.sample(names, min(n, len(names))) if n > 0 else []
