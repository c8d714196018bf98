"""Whole words where they are known, marked characters where they are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.tasks.ragged import Ragged
from saccade.tasks.symbols import SYMBOLS
from saccade.tasks.vocabulary import Vocabulary
from saccade.tasks.words import JOINT, join_words, split_words

BEGIN, MIDDLE, END = "<B>", "<M>", "<E>"


@dataclass(frozen=True)
class MixedWords:
    """The mixed word/character model of GNMT.

    Wu et al., 2016, section 4.2 (https://arxiv.org/abs/1609.08144): a word outside the vocabulary
    becomes its characters, the first marked <B>, the last <E>, those between <M>. "Miki" becomes
    ``<B>M <M>i <M>k <E>i``, and the way back is a matter of taking the marks off.

    The paper does not say what becomes of a word of one character; here it is <B> alone. A
    character that was never seen is UNK.

    >>> mixed = MixedWords.build(["the dog", "the Mki"], n_words=1)
    >>> mixed.pieces("the Miki")
    ['the', '<B>M', '<M>i', '<M>k', '<E>i']
    """

    vocabulary: Vocabulary

    @classmethod
    def build(cls, texts: Iterable[str], *, n_words: int) -> MixedWords:
        """The commonest ``n_words`` words, and every character at each of the three places."""
        sentences = [split_words(text) for text in texts]
        kept = Vocabulary.build(sentences, max_size=n_words + len(SYMBOLS)).words
        characters = sorted({letter for words in sentences for word in words for letter in word})
        marked = [mark + letter for mark in (BEGIN, MIDDLE, END) for letter in characters]
        return cls(Vocabulary((*kept, *marked)))

    def __len__(self) -> int:
        return len(self.vocabulary)

    def pieces(self, text: str) -> list[str]:
        """Words and marked characters."""
        return [piece for word in split_words(text) for piece in self._word(word)]

    def _word(self, word: str) -> list[str]:
        return [word] if word in self.vocabulary else spell(word)

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces."""
        return self.vocabulary.encode(self.pieces(text))

    def encode_all(self, texts: Sequence[str]) -> Ragged:
        """The same for many texts."""
        return Ragged.of(map(self.encode, texts))

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first EOS."""
        return join_words(unspell(self.vocabulary.decode(ids)))

    def unknown(self, text: str) -> list[str]:
        """The words with a character that was never seen at its place."""
        known = self.vocabulary
        return [
            word.strip(JOINT)
            for word in split_words(text)
            if any(piece not in known for piece in self._word(word))
        ]

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id."""
        return [self.vocabulary.words[each] for each in ids]

    def to_json(self) -> dict[str, Any]:
        """Kind and pieces."""
        return {"kind": "mixed", "words": list(self.vocabulary.words)}


def spell(word: str) -> list[str]:
    """The marked characters of a word.

    >>> " ".join(spell("Miki"))
    '<B>M <M>i <M>k <E>i'
    """
    first, *rest = word
    marked = [BEGIN + first, *(MIDDLE + letter for letter in rest)]
    if rest:
        marked[-1] = END + rest[-1]
    return marked


def unspell(pieces: Iterable[str]) -> list[str]:
    """Words from pieces, also where a model has put the marks together wrongly.

    A <M> or <E> goes on with the characters before it, and begins a word where there are none.

    >>> unspell(["the", "<B>M", "<M>i", "<M>k", "<E>i", "<E>x"])
    ['the', 'Miki', 'x']
    """
    words: list[str] = []
    is_open = False
    for piece in pieces:
        mark, letter = piece[: len(BEGIN)], piece[len(BEGIN) :]
        if mark not in (BEGIN, MIDDLE, END) or not letter:
            words.append(piece)
            is_open = False
            continue
        if is_open and mark != BEGIN:
            words[-1] += letter
        else:
            words.append(letter)
        is_open = mark != END
    return words
