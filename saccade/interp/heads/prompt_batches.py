"""Many prompts in batches: padded at the end, sorted by length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.heads.capture import capture, keep_in, on_input, run_through

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

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
    encoded: Sequence[Int[Tensor, " _"]], *, max_tokens: int = BATCH_TOKENS, n_more: int = 0
) -> Iterator[PromptBatch]:
    """Every prompt once, from the shortest to the longest, at most ``max_tokens`` per batch.

    Args:
        n_more: how many rows more each prompt costs: the copies of its last token.

    >>> batches = list(prompt_batches([torch.tensor([5, 6, 7]), torch.tensor([8])], max_tokens=6))
    >>> batches[0].rows, batches[0].ids
    (tensor([1, 0]), tensor([[8, 0, 0],
            [5, 6, 7]]))
    """
    order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
    while order:
        n = 1
        while n < len(order) and (n + 1) * (len(encoded[order[n]]) + n_more) <= max_tokens:
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


@torch.no_grad()
def shallow_rows(
    model: LanguageModel, encoded: Sequence[Int[Tensor, " _"]], *, layers: Sequence[int]
) -> Iterator[tuple[int, dict[int, Float[Tensor, "pos head d_head"]]]]:
    """The number and the activations of one prompt at a time; no deeper layer is computed.

    Padding is at the end, where no token of a causal model attends to it: no mask is needed.
    """
    deepest = max((model.layer(each) for each in layers), key=lambda each: each.index)
    for batch in prompt_batches(encoded):
        flat: dict[int, Tensor] = {}
        with ExitStack() as stack:
            for each in layers:
                stack.enter_context(on_input(model.layer(each).projection, keep_in(flat, each)))
            run_through(model.hf, batch.ids, deepest.projection)
        for place, prompt in enumerate(batch.rows.tolist()):
            z = {}
            for each in layers:
                shape = (*batch.ids.shape, model.layer(each).n_heads, model.layer(each).d_head)
                z[each] = flat[each].reshape(shape)[place, : len(encoded[prompt])]
            yield prompt, z


def _padded(rows: list[int], texts: list[Tensor]) -> PromptBatch:
    ids = torch.nn.utils.rnn.pad_sequence(
        texts, batch_first=True
    )  # the id of padding does not matter
    lengths = torch.tensor([len(text) for text in texts], device=ids.device)
    mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    return PromptBatch(torch.tensor(rows), ids, mask)
