"""Running text for language models: contiguous streams, so that a state can be carried along."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks.vocabulary import EOS, PAD, SYMBOLS, UNK, Vocabulary

# Text to words and back: punctuation marks are tokens, with marks where no space was.

JOINT = "￭"
"""Marks the side of a punctuation mark on which there was no space."""

# A word may hold apostrophes, hyphens, points and commas, but only inside: don't, 3.5, U.S
_PARTS = re.compile(r"\w+(?:['\u2019.,-]\w+)*|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Words and punctuation marks; `join_words` restores the text.

    The idea is OpenNMT's "joiner": a punctuation mark without a space before or after it carries a
    joiner on that side, so that a translation can be detokenised without rules of a language.
    Spaces count as one.

    >>> split_words("A dog (small), isn't it?")
    ['A', 'dog', '(￭', 'small', '￭)', '￭,', "isn't", 'it', '￭?']
    """
    words: list[str] = []
    end = -1  # of the part before
    for part in _PARTS.finditer(text.replace(JOINT, " ")):
        word = part.group()
        if part.start() == end:
            if _is_mark(word):
                word = JOINT + word
            else:  # then the part before is a mark: two words cannot be adjacent
                words[-1] += JOINT
        words.append(word)
        end = part.end()
    return words


def join_words(words: Iterable[str]) -> str:
    """The text that `split_words` was given, with single spaces.

    >>> join_words(split_words("A dog (small), isn't it?"))
    "A dog (small), isn't it?"
    """
    return re.sub(f" ?{JOINT} ?", "", " ".join(words))


def _is_mark(word: str) -> bool:
    return len(word) == 1 and not word.isalnum() and word != "_"


# Running text to sentences, by the context of a full stop.

_BETWEEN_PARAGRAPHS = re.compile(r"\n\s*\n")
# A stop, whatever closes after it, and then white space and a capital, opened by a quote or not.
_END = re.compile(r"[.!?]+[\"'\u201d\u2019)\]]*(?=\s+[\"'\u201c\u2018(\[]*[A-Z])")
# A full stop after one of these, or after a single capital, does not end a sentence.
_SHORT = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Esq|Messrs|Mme|Prof|Rev|Capt|Col|No)|\b[A-Z])\Z")


def split_sentences(text: str) -> list[str]:
    r"""The sentences of a text whose paragraphs have an empty line between them.

    A paragraph without a lower-case letter is a heading, and is left out. Underscores, which stand
    for italics in Project Gutenberg's books, become spaces.

    >>> split_sentences("CHAPTER I\n\nMr. Bingley came.  'Why?'\nasked Jane. He _laughed_.")
    ['Mr. Bingley came.', "'Why?' asked Jane.", 'He laughed .']
    """
    sentences = []
    for paragraph in _BETWEEN_PARAGRAPHS.split(text.replace("_", " ")):
        whole = " ".join(paragraph.split())
        if any(letter.islower() for letter in whole):
            sentences += _cut(whole)
    return sentences


def _cut(paragraph: str) -> list[str]:
    sentences, begin = [], 0
    for end in _END.finditer(paragraph):
        if end.group() != "." or not _SHORT.search(paragraph, begin, end.start()):
            sentences.append(paragraph[begin : end.end()].strip())
            begin = end.end()
    return [*sentences, rest] if (rest := paragraph[begin:].strip()) else sentences


Unit = Literal["word", "character"]


class TextSplits(NamedTuple):
    """The training, validation (may be empty) and test parts."""

    train: str
    valid: str
    test: str


class TextBatch(NamedTuple):
    """The same window of each stream."""

    inputs: Int[Tensor, "batch pos"]
    targets: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    is_first: bool
    """True where the streams begin: a carried state is reset."""


@dataclass(frozen=True)
class TextCorpus:
    """The ids of each part, and the vocabulary of the first."""

    train: Int[Tensor, " train_token"]
    valid: Int[Tensor, " valid_token"]
    test: Int[Tensor, " test_token"]
    vocabulary: Vocabulary
    unit: Unit


def split_text(text: str, *, valid: float, test: float) -> TextSplits:
    """The first characters for training, the next for validation, the last for the test.

    >>> split_text("abcdefghij", valid=0.2, test=0.1)
    TextSplits(train='abcdefg', valid='hi', test='j')
    """
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise UsageError(
            f"valid {valid} and test {test} leave nothing for training",
            hint="give two shares of 0 or more that add up to less than 1",
        )
    # Cuts where nanoGPT does, also for fractions that are not exact in binary.
    begin, end = (int(round(len(text) * (1 - share), 6)) for share in (valid + test, test))
    return TextSplits(text[:begin], text[begin:end], text[end:])


def make_corpus(
    splits: TextSplits, *, unit: Unit, max_size: int | None = None, min_count: int = 1
) -> TextCorpus:
    """Encode each part; the vocabulary is that of the training part.

    Words are separated by spaces, and each line ends in EOS, as is usual for the Penn Treebank and
    WikiText. Characters are used as they are, line feeds included.

    Args:
        max_size: maximum vocabulary size, symbols included.
        min_count: words that are rarer become UNK.
    """
    pieces = [split_units(part, unit) for part in splits]
    if not pieces[0]:
        raise TaskError("the training text is empty", hint="give a file with text in it")
    kept = (each for each in pieces[0] if each not in SYMBOLS)
    vocabulary = Vocabulary.build([kept], max_size=max_size, min_count=min_count)
    train, valid, test = (
        torch.tensor(vocabulary.encode(part), dtype=torch.int64) for part in pieces
    )
    return TextCorpus(train, valid, test, vocabulary, unit)


def split_units(text: str, unit: Unit) -> list[str]:
    r"""The characters of a text, or its words with EOS at the end of each line.

    >>> split_units("To be,\nor not", "word")
    ['To', 'be,', '</s>', 'or', 'not', '</s>']
    """
    if unit == "character":
        return list(text)
    lines = text.removesuffix("\n").split("\n") if text else []
    # A symbol written in a text is text, not EOS or padding.
    plain: dict[str, str] = dict.fromkeys(SYMBOLS, SYMBOLS[UNK])
    words = ((plain.get(word, word) for word in line.split()) for line in lines)
    return [word for line in words for word in (*line, SYMBOLS[EOS])]


def stream_batches(ids: Int[Tensor, " token"], *, batch: int, window: int) -> Iterator[TextBatch]:
    """Cut a text into ``batch`` streams and go through all of them window by window.

    Row ``i`` of a window continues row ``i`` of the window before, so that a recurrent state can be
    carried along (and detached from the gradient). Every token but the first is a target exactly
    once; the last stream may be shorter, and the mask says so.

    >>> first, second = stream_batches(torch.arange(4, 12), batch=2, window=3)
    >>> first.inputs.tolist(), first.targets.tolist()
    ([[4, 5, 6], [8, 9, 10]], [[5, 6, 7], [9, 10, 11]])
    >>> second.targets.tolist(), second.mask.tolist()
    ([[8], [0]], [[True], [False]])
    """
    n_targets = len(ids) - 1
    if n_targets < batch:
        raise TaskError(
            f"a text of {len(ids)} tokens is too short for {batch} streams",
            hint=f"give more text, or at most {max(n_targets, 0)} streams",
        )
    length = -(-n_targets // batch)
    short = length * batch - n_targets
    whole = torch.cat([ids, ids.new_full((short,), PAD)])
    inputs, targets = whole[:-1].view(batch, length), whole[1:].view(batch, length)
    mask = (torch.arange(length * batch) < n_targets).view(batch, length)
    for at in range(0, length, window):
        part = slice(at, at + window)
        yield TextBatch(inputs[:, part], targets[:, part], mask[:, part], is_first=at == 0)
