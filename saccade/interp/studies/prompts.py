"""Prompts in batches, the last tokens of prompts under many changes, and continuations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from saccade.errors import UsageError
from saccade.interp.heads.capture import base_of, capture
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


# Many prompts in batches: padded at the end, sorted by length.

# Tokens per batch, padding included: the activations of one are 69 kB in the default model.
BATCH_TOKENS = 1024


class PromptBatch(NamedTuple):
    """A batch of prompts."""

    rows: Int[Tensor, " batch"]
    """Their indices among all prompts."""
    ids: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    """True = a real token; padding is at the end."""

    @property
    def last(self) -> Int[Tensor, " batch"]:
        """The position of each prompt's last token."""
        return self.mask.sum(1) - 1


class PromptRow(NamedTuple):
    """One prompt, and the activations at each of its tokens."""

    prompt: int
    """Its index among all prompts."""
    z: dict[int, Float[Tensor, "pos head d_head"]]
    """By layer: the activation of each head."""
    final: Float[Tensor, "pos d_model"]
    """The final normed state."""


def encode_prompts(
    model: LanguageModel,
    prompts: Sequence[str],
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Int[Tensor, " pos"]]:
    """The ids of each prompt; an error names the prompt that is empty or too long."""
    if not prompts:
        raise UsageError("there are no prompts", hint="give at least one")
    encoded = []
    for number, prompt in enumerate(prompts, start=1):
        try:
            encoded.append(model.encode(prompt)[0])
        except UsageError as error:
            raise UsageError(f"prompt {number}: {error}", hint=error.hint) from error
        if progress is not None:
            progress("tokenizing prompts", number, len(prompts))
    return encoded


def prompt_batches(
    encoded: Sequence[Int[Tensor, " _"]], *, max_tokens: int = BATCH_TOKENS
) -> Iterator[PromptBatch]:
    """Every prompt once, from the shortest to the longest, at most ``max_tokens`` per batch.

    >>> batches = list(prompt_batches([torch.tensor([5, 6, 7]), torch.tensor([8])], max_tokens=6))
    >>> batches[0].rows, batches[0].ids
    (tensor([1, 0]), tensor([[8, 0, 0],
            [5, 6, 7]]))
    """
    order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
    while order:
        n = 1
        while n < len(order) and (n + 1) * len(encoded[order[n]]) <= max_tokens:
            n += 1
        rows, order = order[:n], order[n:]
        yield _padded(rows, [encoded[row] for row in rows])


def prompt_rows(
    model: LanguageModel, encoded: Sequence[Int[Tensor, " _"]], *, layers: Sequence[int]
) -> Iterator[PromptRow]:
    """One prompt at a time, from padded batches, in the order of the batches."""
    for batch in prompt_batches(encoded):
        captured = capture(model, batch.ids, mask=batch.mask, layers=layers)
        for place, prompt in enumerate(batch.rows.tolist()):
            n = len(encoded[prompt])
            z = {layer: activation[place, :n] for layer, activation in captured.z.items()}
            yield PromptRow(prompt, z, captured.final[place, :n])


def _padded(rows: list[int], texts: list[Tensor]) -> PromptBatch:
    ids = torch.nn.utils.rnn.pad_sequence(
        texts, batch_first=True
    )  # the id of padding does not matter
    lengths = torch.tensor([len(text) for text in texts], device=ids.device)
    mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    return PromptBatch(torch.tensor(rows), ids, mask)


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
