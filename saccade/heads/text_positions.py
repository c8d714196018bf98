"""Where in its whole text each token of a running pass stands."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import Cache

from saccade.errors import InterventionError

PADDING = -(2**31)  # the place of what is no token: no position, counted from either end, is here


class Chosen(NamedTuple):
    """Which tokens of a pass a change is for."""

    tokens: Bool[Tensor, "batch pos"]
    slot: Int[Tensor, "batch pos"]
    """Which of the asked positions each of them is; 0 where none is."""
    reached: Bool[Tensor, " slot"]
    """Which of the asked positions are in this pass."""


class RunningPass(NamedTuple):
    """The tokens of one forward pass, by their places in the text as a whole."""

    place: Int[Tensor, "batch pos"]
    """Counted over real tokens from the start of the text; `PADDING` where there is none."""
    end: Int[Tensor, " batch"]
    """How many real tokens each text has, from whose end negative positions count."""

    def choose(self, positions: Sequence[int] | None, rows: Sequence[int] | None) -> Chosen:
        """The tokens at ``positions`` (all: None) of the texts ``rows`` (all: None)."""
        of_row = torch.ones_like(self.end, dtype=torch.bool)
        if rows is not None:
            wanted = torch.as_tensor(rows, device=self.end.device)
            of_row = (torch.arange(len(self.end), device=wanted.device)[:, None] == wanted).any(1)
        real = (self.place != PADDING) & of_row[:, None]
        if positions is None:
            return Chosen(real, torch.zeros_like(self.place), real.new_ones(0))
        asked = torch.as_tensor(positions, device=self.end.device)
        asked = torch.where(asked < 0, self.end[:, None] + asked, asked)  # [batch, slot]
        # A negative position before the start of a short text is nowhere, not at a padding token.
        hits = (self.place[:, :, None] == asked[:, None]) & real[..., None]  # [batch, pos, slot]
        return Chosen(hits.any(-1), hits.int().argmax(-1), hits.flatten(0, 1).any(0))


class PassWatcher:
    """Reads where each pass stands.

    Negative positions count from the end of the text that a cache began with, so that what was
    changed stays where it was while words are added.
    """

    def __init__(self) -> None:
        self.running: RunningPass | None = None
        self._ends: WeakKeyDictionary[Cache, Tensor] = WeakKeyDictionary()

    def enter(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pre-hook of the module that runs the blocks."""
        given = inspect.signature(base.forward).bind_partial(*args, **kwargs).arguments
        given = {**given.pop("kwargs", {}), **given}
        tokens = given.get("input_ids")
        tokens = given["inputs_embeds"] if tokens is None else tokens
        batch, n_new = tokens.shape[:2]
        cache = given.get("past_key_values")
        n_past = int(cache.get_seq_length()) if isinstance(cache, Cache) else 0
        real = _real_tokens(given.get("attention_mask"), batch, n_past + n_new).to(tokens.device)
        place = (real.cumsum(1) - 1).masked_fill(~real, PADDING)[:, n_past:]
        end = real.sum(1)
        if isinstance(cache, Cache):
            end = self._ends.setdefault(cache, end)
        self.running = RunningPass(place, end)

    def leave(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        """A forward hook of the module that runs the blocks, called after an error too."""
        cache = getattr(output, "past_key_values", None)
        if isinstance(cache, Cache) and self.running is not None:
            self._ends.setdefault(cache, self.running.end)
        self.running = None


def _real_tokens(mask: Any, batch: int, length: int) -> Bool[Tensor, "batch key_pos"]:
    if mask is None:
        return torch.ones(batch, length, dtype=torch.bool)
    if not isinstance(mask, Tensor) or tuple(mask.shape) != (batch, length):
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise InterventionError(
            f"cannot tell where the texts begin: expected a mask of {batch} texts x {length} "
            f"tokens, got {got}",
            hint="give a mask of [batch, key_pos] that covers the cached tokens too",
        )
    return mask.bool()
