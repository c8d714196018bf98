"""How single tokens are shown."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

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
