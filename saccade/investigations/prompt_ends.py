"""What a model says after many prompts, again and again with other changes at their last tokens."""

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
from saccade.heads import intervene
from saccade.heads.running import base_of

if TYPE_CHECKING:
    from saccade.heads import Change, LanguageModel


class PromptEnds:
    """Prompts run up to their last tokens once; from there a few tokens a prompt tell the rest.

    A change at the last tokens reaches nothing earlier, so a search over many such changes costs
    those tokens for each change instead of the whole text. Prompts are padded on the left, and the
    places of their tokens are told to the model where it takes them.

    Args:
        tail: how many of the last tokens are run for each change.
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
        """The final normed states of the last tokens, under changes at them."""
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
