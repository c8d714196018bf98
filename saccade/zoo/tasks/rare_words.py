"""Tokenizers that spell out rare words: mixed word/character, and words with spelled <unk>.

The second is the input of the hybrid translator (`saccade.zoo.models.hybrid_translator`): words are
for its word level, and the characters between <unk> and </w> for its character level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.zoo.tasks.text import JOINT, join_words, split_words
from saccade.zoo.tasks.vocabulary import SYMBOLS, UNK, Ragged, Vocabulary, said

# Known words as whole words, unknown words as marked characters.

BEGIN, MIDDLE, END = "<B>", "<M>", "<E>"


@dataclass(frozen=True)
class MixedWords:
    """The mixed word/character model of GNMT.

    Wu et al., 2016, section 4.2 (https://arxiv.org/abs/1609.08144): a word outside the vocabulary
    becomes its characters, the first marked <B>, the last <E>, those between <M>. "Miki" becomes
    ``<B>M <M>i <M>k <E>i``, and decoding removes the marks.

    The paper does not specify a word of one character; here it is <B> alone. An unseen character is
    UNK.

    >>> mixed = MixedWords.build(["the dog", "the Mki"], n_words=1)
    >>> mixed.pieces("the Miki")
    ['the', '<B>M', '<M>i', '<M>k', '<E>i']
    """

    vocabulary: Vocabulary

    @classmethod
    def build(cls, texts: Iterable[str], *, n_words: int) -> MixedWords:
        """The most frequent ``n_words`` words, and each character at all three positions."""
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
        """The words with a character that was never seen at its position."""
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
    """Words from pieces, also where a model produces invalid marks.

    A <M> or <E> continues the characters before it, and begins a word where there are none.

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


END_OF_WORD = 4
"""Follows the last character of a spelled word."""
UNSEEN = 5
"""A character that did not occur in training."""
FIRST_WORD = 256
"""Lower ids are symbols and characters, ids from here on are words. Multi30k has 120 characters."""

NAMES = ("</w>", "<?>")
MARK = "·"  # before each character, to tell the letter a from the word a
BLANK = "<blank>"


@dataclass(frozen=True)
class SpelledWords:
    """Known words by their ids; an unknown one as <unk>, its characters, and </w>.

    >>> tokenizer = SpelledWords.build(["the dog", "the Miki"], n_words=1)
    >>> tokenizer.labels(tokenizer.encode("the Mik"))
    ['the', '<unk>', '·M', '·i', '·k', '</w>']
    >>> tokenizer.decode(tokenizer.encode("the Mik"))
    'the Mik'
    """

    vocabulary: Vocabulary

    @classmethod
    def build(cls, texts: Iterable[str], *, n_words: int) -> SpelledWords:
        """The most frequent ``n_words`` words, and the characters of all."""
        sentences = [split_words(text) for text in texts]
        words = Vocabulary.build(sentences, max_size=n_words + len(SYMBOLS)).words[len(SYMBOLS) :]
        counts = Counter(chain.from_iterable(chain.from_iterable(sentences)))
        room = FIRST_WORD - len(SYMBOLS) - len(NAMES)
        letters = sorted(MARK + letter for letter, _ in counts.most_common(room))
        # A fixed number of ids, so that an id alone distinguishes words from characters.
        blanks = [f"{BLANK}{place}" for place in range(room - len(letters))]
        return cls(Vocabulary((*SYMBOLS, *NAMES, *letters, *blanks, *words)))

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        """The ids of words and of the characters of unknown words."""
        return [each for word in split_words(text) for each in self._word(word)]

    def _word(self, word: str) -> list[int]:
        ids = self.vocabulary.ids
        if word in ids:
            return [ids[word]]
        return [UNK, *(ids.get(MARK + letter, UNSEEN) for letter in word), END_OF_WORD]

    def encode_all(self, texts: Sequence[str]) -> Ragged:
        """The same for many texts."""
        return Ragged.of(map(self.encode, texts))

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first EOS; accepts any sequence of ids."""
        words: list[str] = []
        is_open = False
        for each in said(ids):
            if UNSEEN <= each < FIRST_WORD:
                letter = "\N{REPLACEMENT CHARACTER}" if each == UNSEEN else self._letter(each)
                words[-1:] = [words[-1] + letter] if is_open else [*words[-1:], letter]
            elif each == UNK:
                words.append("")
            elif each != END_OF_WORD:
                words.append(self.vocabulary.words[each])
            is_open = each == UNK or UNSEEN <= each < FIRST_WORD
        return join_words(word for word in words if word)

    def _letter(self, each: int) -> str:
        name = self.vocabulary.words[each]
        return "" if name.startswith(BLANK) else name[len(MARK) :]

    def unknown(self, text: str) -> list[str]:
        """The words with a character that was never seen; others are spelled out."""
        return [word.strip(JOINT) for word in split_words(text) if UNSEEN in self._word(word)]

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The word or the marked character of each id."""
        return [self.vocabulary.words[each] for each in ids]

    def to_json(self) -> dict[str, Any]:
        """Kind and words."""
        return {"kind": "spelled", "words": list(self.vocabulary.words)}


def is_spelling(ids: Int[Tensor, "*at"]) -> Bool[Tensor, "*at"]:
    """Positions of an <unk> or of one of its characters: a character or </w> follows.

    >>> is_spelling(torch.tensor([FIRST_WORD, UNK, 97, 98, END_OF_WORD, FIRST_WORD])).int()
    tensor([0, 1, 1, 1, 0, 0], dtype=torch.int32)
    """
    return (ids == UNK) | ((ids >= UNSEEN) & (ids < FIRST_WORD))


class Compressed(NamedTuple):
    """Some positions of each row, moved to its beginning."""

    place: Int[Tensor, "batch kept_pos"]
    """The original position of each; 0 beyond the last."""
    mask: Bool[Tensor, "batch kept_pos"]


def compress(keep: Bool[Tensor, "batch pos"]) -> Compressed:
    """Find the positions to keep, in order.

    >>> compress(torch.tensor([[False, True, True], [True, False, False]])).place
    tensor([[1, 2], [0, 0]])
    """
    n = keep.sum(1)
    order = (~keep).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(n.max())]
    mask = torch.arange(order.shape[1], device=keep.device) < n[:, None]
    return Compressed(order.where(mask, 0), mask)


class Spellings(NamedTuple):
    """The spelled words of a batch, one a row, each from its <unk> to its last character."""

    letters: Int[Tensor, "word letter"]
    mask: Bool[Tensor, "word letter"]
    row: Int[Tensor, " word"]
    """The sentence of each word."""
    place: Int[Tensor, " word"]
    """The position of its <unk> in that sentence."""


def find_spellings(ids: Int[Tensor, "batch pos"]) -> Spellings:
    """All spelled words, in order; <unk> counts as the first letter."""
    inside = is_spelling(ids)
    row, place = ((ids == UNK) & inside).nonzero(as_tuple=True)
    ends = torch.cat([inside, inside.new_zeros(len(ids), 1)], dim=1).logical_not()
    # The next position that is not inside: the smallest end from each position on.
    at = torch.arange(ends.shape[1], device=ids.device).where(ends, ends.shape[1])
    next_end = at.flip(1).cummin(1).values.flip(1)
    length = next_end[row, place] - place
    offset = torch.arange(int(length.max()) if len(length) else 0, device=ids.device)
    mask = offset < length[:, None]
    letters = ids[row[:, None], (place[:, None] + offset).where(mask, 0)].where(mask, 0)
    return Spellings(letters, mask, row, place)
