"""Subword tokenizers, trained on text: byte-pair encoding and wordpieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import NFC, Replace, Strip
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Metaspace, Punctuation
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks.vocabulary import SYMBOLS, UNK, Ragged, said

KINDS = ("bpe", "wordpiece")
START = "▁"
"""Begins every word's first piece: GNMT writes it as an underscore."""


@dataclass(frozen=True)
class Subwords:
    """A trained tokenizer of Hugging Face's ``tokenizers``, with our symbols and no others.

    * "bpe": Sennrich et al., 2016 (https://arxiv.org/abs/1508.07909), merges replayed in order.
    * "wordpiece": Schuster and Nakajima, 2012; GNMT section 4.1 (https://arxiv.org/abs/1609.08144),
      the longest piece that fits, from left to right.

    As in GNMT a word's first piece begins with a mark, so that the text comes back from its pieces
    alone (with single spaces, in Unicode's composed form). Unlike GNMT punctuation is never part of
    a word's piece. A symbol written in a text, such as "</s>", is text.

    >>> pieces = Subwords.train(["low lower lowest"] * 5, size=20)
    >>> pieces.decode(pieces.encode("lower low"))
    'lower low'
    """

    kind: str
    tokenizer: Tokenizer = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        # Not stored in the tokenizer's own JSON, so it is set here.
        self.tokenizer.encode_special_tokens = True

    @classmethod
    def train(cls, texts: Iterable[str], *, size: int, kind: str = "bpe") -> Subwords:
        """Learn at most ``size`` pieces, the four symbols among them."""
        if kind not in KINDS:
            raise UsageError(f"no subwords of kind {kind!r}", hint=" or ".join(KINDS))
        tokenizer = _blank(kind)
        # No continuing prefix ("##"): the mark at the start of words has the same role.
        trainer = (BpeTrainer if kind == "bpe" else WordPieceTrainer)(
            vocab_size=size,
            special_tokens=[*SYMBOLS],
            show_progress=False,
            continuing_subword_prefix="",
        )
        tokenizer.train_from_iterator(texts, trainer)
        if tokenizer.get_vocab_size() > size:
            raise UsageError(
                f"{size} pieces are too few: the characters alone are "
                f"{tokenizer.get_vocab_size()} with the symbols",
                hint=f"allow at least {tokenizer.get_vocab_size()}",
            )
        return cls(kind, tokenizer)

    @classmethod
    def of_pieces(cls, pieces: Sequence[str]) -> Subwords:
        """Wordpieces from a list, after the symbols; for a vocabulary made elsewhere."""
        vocabulary = {piece: place for place, piece in enumerate([*SYMBOLS, *pieces])}
        return cls("wordpiece", _blank("wordpiece", vocabulary))

    @classmethod
    def from_json(cls, held: dict[str, Any]) -> Subwords:
        """Restore it from `to_json`."""
        try:
            tokenizer = Tokenizer.from_str(json.dumps(held["tokenizer"]))
        except Exception as error:  # the library raises nothing narrower
            raise TaskError(
                f"these subwords are damaged: {error}", hint="take another copy of the file"
            ) from error
        return cls(held["kind"], tokenizer)

    def to_json(self) -> dict[str, Any]:
        """Kind, and the tokenizer in its library's own form."""
        return {"kind": self.kind, "tokenizer": json.loads(self.tokenizer.to_str())}

    @cached_property
    def _pieces(self) -> list[str]:
        vocabulary = self.tokenizer.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of a text's pieces."""
        return self.tokenizer.encode(text).ids

    def encode_all(self, texts: Sequence[str]) -> Ragged:
        """The same for many texts at once, by the library's threads."""
        return Ragged.of(each.ids for each in self.tokenizer.encode_batch_fast(list(texts)))

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first EOS."""
        pieces = self.labels(said(ids))
        # An unknown word comes without its mark.
        spaced = [START + piece if piece == SYMBOLS[UNK] else piece for piece in pieces]
        return " ".join("".join(spaced).replace(START, " ").split())

    def unknown(self, text: str) -> list[str]:
        """The characters (wordpiece: the words) that become UNK."""
        encoded = self.tokenizer.encode(text)
        spans = zip(encoded.ids, encoded.offsets, strict=True)
        return [text[start:end].strip() for each, (start, end) in spans if each == UNK]

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id."""
        return [self._pieces[each] for each in ids]


def _blank(kind: str, vocabulary: dict[str, int] | None = None) -> Tokenizer:
    unk = SYMBOLS[UNK]
    if kind == "bpe":
        tokenizer = Tokenizer(BPE(unk_token=unk))
    else:
        # Words have at most 100 characters; the library's own limit.
        model = WordPiece(vocabulary or {}, unk_token=unk, continuing_subword_prefix="")
        tokenizer = Tokenizer(model)
    tokenizer.normalizer = Normalizers([NFC(), Replace(Regex(r"\s+"), " "), Strip()])
    tokenizer.pre_tokenizer = PreTokenizers([Metaspace(), Punctuation()])
    return tokenizer
