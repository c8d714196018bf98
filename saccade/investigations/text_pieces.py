"""Where a piece of a text stands among its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.heads import LanguageModel


def last_token_of(model: LanguageModel, text: str, piece: str) -> int:
    """The position of a piece's last token, from the end of the text: below 0.

    Where the piece is there more than once, the last time counts: by then the model knows most.
    """
    found = text.rfind(piece) if piece.strip() else -1
    if found < 0:
        raise UsageError(
            f"{piece!r} is not in the text {text!r}", hint="give words as they stand in it"
        )
    read = model.encode(text[: found + len(piece)]).shape[1]
    return read - 1 - model.encode(text).shape[1]
