"""What a model says next, word by word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from saccade.errors import UsageError
from saccade.heads.quiet import quiet_transformers

if TYPE_CHECKING:
    from saccade.heads import LanguageModel


MOST_TOKENS = 4096  # of a continuation by a model that sets no limit


def check_room(model: LanguageModel, text: str, n_tokens: int) -> None:
    """Refuse a continuation that is longer than what the model can read."""
    length = model.encode(text).shape[1]
    room = MOST_TOKENS if model.max_positions is None else model.max_positions - length
    if not 0 <= n_tokens <= room:
        raise UsageError(
            f"cannot go on with {n_tokens} tokens: the prompt has {length}, and {model.name} has "
            f"room for {room} more",
            hint=f"ask for at most {room}",
        )


@torch.no_grad()
def go_on(model: LanguageModel, text: str, n_tokens: int) -> str:
    """The likeliest continuation of a text; inside `intervene`, that of the changed model.

    Raises:
        UsageError: the model has no room for so many tokens.
    """
    if not n_tokens:
        return ""
    check_room(model, text, n_tokens)
    ids = model.encode(text)
    with quiet_transformers():
        said = model.hf.generate(  # pyright: ignore[reportCallIssue]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n_tokens,
            do_sample=False,
        )
    assert model.tokenizer is not None, "the text was encoded"
    added = model.tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True)
    assert isinstance(added, str), "one row of ids decodes to one string"
    return added
