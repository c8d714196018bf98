"""Many prompts in batches: padded at the end, those of like length together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.heads import capture

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

# Tokens at once, padding included: what all heads hold of one is 69 kB in the default model.
BATCH_TOKENS = 1024


class PromptBatch(NamedTuple):
    """Some of the prompts."""

    rows: Int[Tensor, " batch"]
    """Which of the prompts they are."""
    ids: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    """True = a real token; padding stands at the end."""

    @property
    def last(self) -> Int[Tensor, " batch"]:
        """The position of each prompt's last token."""
        return self.mask.sum(1) - 1


class PromptRow(NamedTuple):
    """One prompt, and what the model holds at each of its tokens."""

    prompt: int
    """Which of the prompts it is."""
    z: dict[int, Float[Tensor, "pos head d_head"]]
    """By layer: what each head holds."""
    final: Float[Tensor, "pos d_model"]
    """The final normed state."""


def encode_prompts(model: LanguageModel, prompts: Sequence[str]) -> list[Int[Tensor, " pos"]]:
    """The ids of each prompt; the one that is empty or too long is named."""
    if not prompts:
        raise UsageError("there are no prompts", hint="give at least one")
    encoded = []
    for number, prompt in enumerate(prompts, start=1):
        try:
            encoded.append(model.encode(prompt)[0])
        except UsageError as error:
            raise UsageError(f"prompt {number}: {error}", hint=error.hint) from error
    return encoded


def prompt_batches(
    encoded: Sequence[Int[Tensor, " _"]], *, max_tokens: int = BATCH_TOKENS
) -> Iterator[PromptBatch]:
    """Every prompt once, from the shortest to the longest, at most so many tokens at a time.

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
    """One prompt at a time, out of padded batches, in the order of the batches: one pass each."""
    for batch in prompt_batches(encoded):
        captured = capture(model, batch.ids, mask=batch.mask, layers=layers)
        for place, prompt in enumerate(batch.rows.tolist()):
            n = len(encoded[prompt])
            z = {layer: held[place, :n] for layer, held in captured.z.items()}
            yield PromptRow(prompt, z, captured.final[place, :n])


def _padded(rows: list[int], texts: list[Tensor]) -> PromptBatch:
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)  # the id of padding is no matter
    lengths = torch.tensor([len(text) for text in texts], device=ids.device)
    mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    return PromptBatch(torch.tensor(rows), ids, mask)
