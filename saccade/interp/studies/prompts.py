"""The last tokens of prompts under many changes, and continuations."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from saccade.errors import UsageError
from saccade.interp.heads.capture import base_of
from saccade.interp.heads.intervene import intervene
from saccade.interp.heads.loading import quiet_transformers

if TYPE_CHECKING:
    from saccade.interp.heads.intervene import Change
    from saccade.interp.heads.model import LanguageModel


# The position of a piece of a text.


def last_token_of(model: LanguageModel, text: str, piece: str) -> int:
    """The position of a piece's last token, from the end of the text: negative.

    If the piece occurs more than once, the last occurrence counts: it has the most context.
    """
    found = text.rfind(piece) if piece.strip() else -1
    if found < 0:
        raise UsageError(
            f"{piece!r} is not in the text {text!r}", hint="give words exactly as in the text"
        )
    read = model.encode(text[: found + len(piece)]).shape[1]
    return read - 1 - model.encode(text).shape[1]


# Predictions after many prompts, under many changes at their last tokens.


class PromptEnds:
    """Prompts with a key-value cache of all but their last tokens.

    A change at the last tokens affects nothing earlier, so each of many such changes costs only
    those tokens instead of the whole text. Prompts are padded on the left, with position ids where
    the model takes them.

    Args:
        tail: number of last tokens that are run for each change.
    """

    def __init__(
        self, model: LanguageModel, prompts: Sequence[Int[Tensor, " _"]], *, tail: int = 1
    ) -> None:
        self.model = model
        self._tail = tail
        longest = max(len(prompt) for prompt in prompts)
        if min(len(prompt) for prompt in prompts) <= tail:
            raise UsageError(
                f"a prompt has no more than {tail} tokens, all of which would be changed",
                hint="give a longer prompt, or change fewer of its last tokens",
            )
        self._ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=model.device)
        self._mask = torch.zeros_like(self._ids, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            self._ids[row, longest - len(prompt) :] = prompt
            self._mask[row, longest - len(prompt) :] = True
        self._cache = DynamicCache(config=model.hf.config)
        self._run(self._ids[:, :-tail], self._mask[:, :-tail], self._cache)

    def logits(self, changes: Change | Sequence[Change] = ()) -> Float[Tensor, "prompt d_vocab"]:
        """The model's logits after every prompt, under changes at its last tokens."""
        return self.model.unembedding.logits(self.states(changes)[:, -1]).float()

    @torch.no_grad()
    def states(
        self, changes: Change | Sequence[Change] = ()
    ) -> Float[Tensor, "prompt pos d_model"]:
        """The final normed states of the last tokens, under changes at these tokens."""
        changing = intervene(self.model, changes) if changes else nullcontext()
        with changing:
            return self._run(self._ids[:, -self._tail :], self._mask, deepcopy(self._cache))

    @torch.no_grad()
    def _run(
        self, ids: Int[Tensor, "prompt pos"], mask: Bool[Tensor, "prompt key_pos"], cache: Any
    ) -> Float[Tensor, "prompt pos d_model"]:
        base = base_of(self.model.hf)
        given: dict[str, Any] = {"attention_mask": mask.long(), "past_key_values": cache}
        if "position_ids" in inspect.signature(base.forward).parameters:
            places = (mask.long().cumsum(1) - 1).clamp_min(0)
            given["position_ids"] = places[:, -ids.shape[1] :]
        return base(input_ids=ids, use_cache=True, **given).last_hidden_state


MOST_TOKENS = 4096  # of a continuation by a model that sets no limit


def check_room(model: LanguageModel, text: str, n_tokens: int) -> None:
    """Refuse a continuation that exceeds the context of the model."""
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
        output = model.hf.generate(  # pyright: ignore[reportCallIssue]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n_tokens,
            do_sample=False,
        )
    assert model.tokenizer is not None, "the text was encoded"
    added = model.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
    assert isinstance(added, str), "one row of ids decodes to one string"
    return added
