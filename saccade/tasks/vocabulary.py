"""Words (or characters, or brackets) and their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from saccade.errors import TaskError
from saccade.tasks.ragged import Ragged
from saccade.tasks.symbols import BOS, EOS, PAD, SYMBOLS, UNK


@dataclass(frozen=True)
class Vocabulary:
    """A list of words; the place in it is the id. The first four are the symbols.

    >>> words = Vocabulary.build([["the", "cat"], ["the", "mat"]], min_count=2)
    >>> words.encode(["the", "dog"]), len(words)
    ([4, 3], 5)
    >>> words.decode([1, 4, 3, 2, 0])
    ['the', '<unk>']
    """

    words: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if self.words[: len(SYMBOLS)] != SYMBOLS or len(set(self.words)) != len(self.words):
            raise TaskError(
                f"this is no vocabulary: expected {', '.join(SYMBOLS)} and then words, each once",
                hint="the file may have been made for another purpose, or changed by hand",
            )

    @classmethod
    def build(
        cls,
        sequences: Iterable[Iterable[str]],
        *,
        max_size: int | None = None,
        min_count: int = 1,
    ) -> Vocabulary:
        """The commonest words, ties in the order of the alphabet.

        Args:
            max_size: how many entries at most, the symbols included.
        """
        counts = Counter(chain.from_iterable(sequences))
        common = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        kept = [word for word, n in common if n >= min_count and word not in SYMBOLS]
        return cls((*SYMBOLS, *kept)[:max_size])

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each word."""
        return {word: place for place, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.ids

    def encode(self, words: Iterable[str]) -> list[int]:
        """The ids of some words; UNK for those it does not hold."""
        ids = self.ids
        return [ids.get(word, UNK) for word in words]

    def encode_all(self, sequences: Iterable[Iterable[str]]) -> Ragged:
        """The same for many sequences, laid end to end."""
        return Ragged.of(self.encode(words) for words in sequences)

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The words up to the first EOS, without BOS and PAD."""
        return [self.words[each] for each in said(ids)]


def said(ids: Sequence[int]) -> list[int]:
    """What comes before the first EOS, without BOS and PAD.

    >>> said([1, 17, 0, 19, 2, 23])
    [17, 19]
    """
    held = list(ids)
    end = held.index(EOS) if EOS in held else len(held)
    return [each for each in held[:end] if each not in (BOS, PAD)]
