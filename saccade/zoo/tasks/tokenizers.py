"""Tokenizers: their interface, those of whole words and of characters, saving and loading."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from saccade.errors import TaskError
from saccade.store.atomic import atomic_file
from saccade.zoo.tasks.rare_words import MixedWords, SpelledWords
from saccade.zoo.tasks.subwords import Subwords
from saccade.zoo.tasks.text import JOINT, join_words, split_words
from saccade.zoo.tasks.vocabulary import Ragged, Vocabulary

# The interface of all tokenizers.


@runtime_checkable
class Tokenizer(Protocol):
    """Turns text into ids and ids into text."""

    def __len__(self) -> int:
        """Vocabulary size."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS and EOS."""
        ...

    def encode_all(self, texts: Sequence[str]) -> Ragged:
        """The same for many texts."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first EOS."""
        ...

    def unknown(self, text: str) -> list[str]:
        """The parts of a text that its ids lose: unseen words or characters."""
        ...

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The text of each id, symbols included: the labels of a plot's axis."""
        ...

    def to_json(self) -> dict[str, Any]:
        """All that is needed to restore it, with its ``kind``."""
        ...


@dataclass(frozen=True)
class WordTokenizer:
    """Whole words by `split_words`; unknown ones become UNK.

    >>> tokenizer = WordTokenizer.build(["A dog.", "A cat."])
    >>> tokenizer.decode(tokenizer.encode("A cat."))
    'A cat.'
    """

    vocabulary: Vocabulary

    @classmethod
    def build(
        cls, texts: Iterable[str], *, max_size: int | None = None, min_count: int = 1
    ) -> WordTokenizer:
        """The most frequent words of the texts."""
        words = map(split_words, texts)
        return cls(Vocabulary.build(words, max_size=max_size, min_count=min_count))

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        """The ids of the words."""
        return self.vocabulary.encode(split_words(text))

    def encode_all(self, texts: Sequence[str]) -> Ragged:
        """The same for many texts."""
        return Ragged.of(map(self.encode, texts))

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first EOS."""
        return join_words(self.vocabulary.decode(ids))

    def unknown(self, text: str) -> list[str]:
        """The words that become UNK.

        >>> WordTokenizer.build(["a cat."]).unknown("a zebra.")
        ['zebra']
        """
        return [word.strip(JOINT) for word in split_words(text) if word not in self.vocabulary]

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The word of each id."""
        return [self.vocabulary.words[each] for each in ids]

    def to_json(self) -> dict[str, Any]:
        """Kind and words."""
        return {"kind": "words", "words": list(self.vocabulary.words)}


@dataclass(frozen=True)
class CharacterTokenizer:
    """One id a character.

    >>> tokenizer = CharacterTokenizer.build(["print(1)"])
    >>> tokenizer.decode(tokenizer.encode("print(2)"))
    'print(<unk>)'
    """

    vocabulary: Vocabulary

    @classmethod
    def build(cls, texts: Iterable[str]) -> CharacterTokenizer:
        """All characters of the texts."""
        return cls(Vocabulary.build(texts))

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        """The ids of the characters."""
        return self.vocabulary.encode(text)

    def encode_all(self, texts: Sequence[str]) -> Ragged:
        """The same for many texts."""
        return self.vocabulary.encode_all(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first EOS."""
        return "".join(self.vocabulary.decode(ids))

    def unknown(self, text: str) -> list[str]:
        """The characters that become UNK."""
        return [each for each in text if each not in self.vocabulary]

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The character of each id."""
        return [self.vocabulary.words[each] for each in ids]

    def to_json(self) -> dict[str, Any]:
        """Kind and characters."""
        return {"kind": "characters", "words": list(self.vocabulary.words)}


def save_tokenizer(path: str | Path, tokenizer: Tokenizer) -> None:
    """Write a tokenizer as JSON, whole or not at all."""
    with atomic_file(path) as temporary:
        text = json.dumps(tokenizer.to_json(), ensure_ascii=False, indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer of any kind that `save_tokenizer` wrote."""
    try:
        held = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TaskError(
            f"could not read {path}: {error.strerror or error}", hint="check the path"
        ) from error
    except ValueError as error:
        raise TaskError(f"{path} is damaged: {error}", hint="take another copy of it") from error
    return tokenizer_from_json(held, str(path))


def tokenizer_from_json(held: Any, where: str = "this") -> Tokenizer:
    """Restore a tokenizer from its ``to_json``."""
    kind = held.get("kind") if isinstance(held, dict) else None
    try:
        if kind == "words":
            return WordTokenizer(Vocabulary(tuple(held["words"])))
        if kind == "characters":
            return CharacterTokenizer(Vocabulary(tuple(held["words"])))
        if kind == "mixed":
            return MixedWords(Vocabulary(tuple(held["words"])))
        if kind == "spelled":
            return SpelledWords(Vocabulary(tuple(held["words"])))
        if kind in ("bpe", "wordpiece"):
            return Subwords.from_json(held)
    except KeyError as error:
        raise TaskError(
            f"{where} is damaged: it has no {error}", hint="take another copy of it"
        ) from error
    raise TaskError(
        f"{where} is no tokenizer: expected the kind words, characters, mixed, spelled, bpe or "
        f"wordpiece, got {kind!r}",
        hint="check the path",
    )
