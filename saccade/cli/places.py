"""How heads, layers and positions are written on the command line: 9.8, 9, "3,-1"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


def read_place(text: str) -> tuple[int, int | None]:
    """A head, or a layer.

    >>> read_place("9.8"), read_place("12")
    ((9, 8), (12, None))
    """
    found = re.fullmatch(r"(\d+)(?:\.(\d+))?", text.strip())
    if found is None:
        raise UsageError(
            f"{text!r} is no place of a model",
            hint="write a head as layer.head, such as 9.8, and a layer as 9",
        )
    return int(found[1]), None if found[2] is None else int(found[2])


def read_head(text: str) -> tuple[int, int]:
    """A head.

    >>> read_head("9.8")
    (9, 8)
    """
    layer, head = read_place(text)
    if head is None:
        raise UsageError(
            f"{text!r} is a layer, not a head", hint=f"write layer.head, such as {layer}.0"
        )
    return layer, head


def read_scaled(text: str) -> tuple[tuple[int, int], float]:
    """A head, and the factor it is scaled by.

    >>> read_scaled("9.8=0.5")
    ((9, 8), 0.5)
    """
    head, _, factor = text.partition("=")
    try:
        return read_head(head), float(factor)
    except ValueError as error:
        raise UsageError(
            f"{text!r} names no head with a factor", hint="write layer.head=factor, as in 9.8=0.5"
        ) from error


def read_positions(text: str, prompt: str, model: LanguageModel) -> tuple[int, ...] | None:
    """Tokens of a prompt, counted from its end; None for all of them, and all behind them.

    Args:
        text: "all", "last", numbers between commas (from 0, or from the end below 0), or tokens of
            the prompt, for their last token.
    """
    from saccade.interp.studies.prompts import last_token_of

    if text in ("all", "last"):
        return None if text == "all" else (-1,)
    if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", text):
        return (last_token_of(model, prompt, text),)
    n_tokens = model.encode(prompt).shape[1]
    asked = [int(each) for each in text.split(",")]
    for position in asked:
        if not -n_tokens <= position < n_tokens:
            raise UsageError(
                f"there is no position {position}: the prompt has {n_tokens} tokens",
                hint=f"give one of 0 to {n_tokens - 1}, or of -{n_tokens} to -1 from the end",
            )
    return tuple(sorted({p if p < 0 else p - n_tokens for p in asked}))
