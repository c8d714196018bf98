"""What a model says next, word by word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from saccade.heads.quiet import quiet_transformers

if TYPE_CHECKING:
    from saccade.heads import LanguageModel


@torch.no_grad()
def go_on(model: LanguageModel, text: str, n_tokens: int) -> str:
    """The likeliest continuation of a text; inside `intervene`, that of the changed model."""
    if not n_tokens:
        return ""
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
