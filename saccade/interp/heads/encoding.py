"""How a text becomes the token ids that a model reads, for prompts and corpora alike.

Many tokenizers put a token of their own, usually BOS, in front of a text. A model trained with it
computes something else without it: on windows of WikiText-2 the perplexity of Gemma-3-270M is three
times as high. So every text that a model runs on, the windows of a corpus included, begins with
what the tokenizer begins a prompt with, and that is decided here.

Attention rests on the first token of a text and on special tokens (Xiao et al., 2023,
https://arxiv.org/abs/2309.17453, attention sinks), whose activations are unlike all others.
`Encoding.is_text` tells which positions are left when these are taken out: only they enter the
statistics that lenses are fitted on and evaluated with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

# How single tokens are shown.

NO_TEXT = "\N{REPLACEMENT CHARACTER}"


def show_words(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """One string for each id, with its leading space.

    Bytes that are no text by themselves are shown as the tokenizer's own piece.
    """
    anchor = tokenizer("a", add_special_tokens=False).input_ids[-1:]
    start = _decode(tokenizer, anchor)
    return [_show(tokenizer, int(id_), anchor, start) for id_ in ids]


def _show(tokenizer: PreTrainedTokenizerBase, id_: int, anchor: list[int], start: str) -> str:
    if not 0 <= id_ < len(tokenizer):
        return f"<{id_}>"  # the matrix of many models has more rows than there are words
    # SentencePiece drops the space of a first word, so the word is decoded behind another one.
    text = _decode(tokenizer, [*anchor, id_])
    text = text.removeprefix(start) if text.startswith(start) else _decode(tokenizer, [id_])
    if text and NO_TEXT not in text:
        return text
    return str(tokenizer.convert_ids_to_tokens(id_))


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(decoded, str), "one list of ids decodes to one string"
    return decoded


@dataclass(frozen=True)
class Encoding:
    """What a tokenizer adds to the tokens of a text.

    >>> Encoding(prefix=(1,), special=frozenset({1, 2})).is_text(torch.tensor([[1, 7, 2, 7]]))
    tensor([[False,  True, False,  True]])
    """

    prefix: tuple[int, ...] = ()
    """The token ids in front of every text; none for models without BOS."""
    special: frozenset[int] = frozenset()
    """The ids of all special tokens: BOS, end of text, padding and others of the tokenizer's."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase | None) -> Encoding:
        """What a tokenizer adds, found by trying it."""
        if tokenizer is None:
            return cls()
        special = frozenset(int(each) for each in tokenizer.all_special_ids)
        return cls(prefix=_prefix(tokenizer), special=special)

    @property
    def n_skipped(self) -> int:
        """How many positions at the start of every text are no text: the prefix, at least one."""
        return max(1, len(self.prefix))

    def is_text(self, ids: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
        """True = an ordinary token of the text, neither special nor the first one."""
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, : self.n_skipped] = False
        return mask & ~torch.isin(ids, self._special.to(ids.device))

    def with_prefix(self, ids: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch longer_pos"]:
        """Rows of text with the prefix in front of each."""
        first = torch.tensor(self.prefix, dtype=ids.dtype, device=ids.device)
        return torch.cat([first.expand(len(ids), -1), ids], dim=1)

    @cached_property
    def _special(self) -> Tensor:
        return torch.tensor(sorted(self.special), dtype=torch.long)


def _prefix(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids in front of the text's own. What a tokenizer puts behind a text is not wanted."""
    whole = [int(each) for each in tokenizer("a").input_ids]
    plain = [int(each) for each in tokenizer("a", add_special_tokens=False).input_ids]
    starts = range(len(whole) - len(plain) + 1) if plain else ()
    start = next((at for at in starts if whole[at : at + len(plain)] == plain), 0)
    return tuple(whole[:start])


def text_ids(
    tokenizer: PreTrainedTokenizerBase, encoding: Encoding, text: str
) -> Int[Tensor, "1 pos"]:
    """The ids of one prompt: the prefix, then the text; nothing that would end it."""
    plain = tokenizer(text, add_special_tokens=False).input_ids
    return encoding.with_prefix(torch.tensor([plain], dtype=torch.long))
