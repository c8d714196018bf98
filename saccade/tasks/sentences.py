"""Running text into sentences, by what stands before and after a full stop."""

from __future__ import annotations

import re

_BETWEEN_PARAGRAPHS = re.compile(r"\n\s*\n")
# A stop, whatever closes after it, and then white space and a capital, opened by a quote or not.
_END = re.compile(r"[.!?]+[\"'\u201d\u2019)\]]*(?=\s+[\"'\u201c\u2018(\[]*[A-Z])")
# A point after one of these, or after a single capital, ends a word and no sentence.
_SHORT = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Esq|Messrs|Mme|Prof|Rev|Capt|Col|No)|\b[A-Z])\Z")


def split_sentences(text: str) -> list[str]:
    r"""The sentences of a text whose paragraphs have an empty line between them.

    A paragraph without a small letter is a heading, and is left out. Underscores, which stand for
    italics in Project Gutenberg's books, become spaces.

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
