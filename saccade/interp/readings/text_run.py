"""A stored run of a model over one text: the source of readings, head cards and grids."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import ModelError, UsageError
from saccade.interp.heads.capture import Captured, capture
from saccade.interp.heads.intervene import Change, intervene

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

# Attention weights grow quadratically with the length of the text; up to this size they are kept.
WEIGHTS_BYTES = 2**26


@final
class TextRun:
    """The activations of a model at every position of a text, optionally with interventions.

    One run serves every lens, position and head. Attention weights are kept if they are small; for
    a long text they are computed when a position or a layer is requested.
    """

    def __init__(
        self, model: LanguageModel, text: str, *, changes: Sequence[Change] = (), limit: int = 0
    ) -> None:
        """Run the model once.

        Args:
            changes: interventions on the model; see `saccade.interp.heads.intervene`.
            limit: maximum number of tokens; 0 for the limit of the model.
        """
        self.model, self.text, self.changes = model, text, tuple(changes)
        self.ids = model.encode(text)
        _refuse_longer(self.ids.shape[1], limit)
        self.tokens = model.tokens(self.ids[0])
        self.has_attention = True
        n_weights = model.n_heads * len(self.tokens) ** 2
        self._layers = [at.index for at in model.layers]
        few = 4 * n_weights <= WEIGHTS_BYTES
        self.captured = self._capture(attention=self._layers if few else [])
        self._whole = dict(self.captured.attention)
        self._rows: dict[int, dict[int, Tensor]] = {}

    @property
    def n_bytes(self) -> int:
        """Approximate memory."""
        tensors = [self.captured.z, self.captured.residual, self._whole, *self._rows.values()]
        return sum(each.numel() * each.element_size() for part in tensors for each in part.values())

    def position(self, asked: int) -> int:
        """A position counted from the start; raises `UsageError` if it does not exist."""
        n = len(self.tokens)
        if not -n <= asked < n:
            raise UsageError(
                f"no position {asked}: the text has {n} tokens, 0-{n - 1}",
                hint="positions count tokens from 0; -1 is the last",
            )
        return asked % n

    def attention_at(self, position: int) -> dict[int, Float[Tensor, "head key_pos"]]:
        """By layer: the attention weights of each head from a position.

        Empty for a model whose kernel does not return its weights.
        """
        if self._whole and len(self._whole) == len(self._layers):
            return {layer: each[0, :, position] for layer, each in self._whole.items()}
        if position not in self._rows and self.has_attention:
            found = self._capture(attention=self._layers, positions=[position], layers=[])
            # For a long text only the last requested position and layer are kept.
            self._rows = {position: {at: each[0, :, 0] for at, each in found.attention.items()}}
        return self._rows.get(position, {})

    def attention_of(self, layer: int) -> Float[Tensor, "head query_pos key_pos"]:
        """The attention weights of every position of one layer.

        Raises:
            ModelError: the model's kernel does not return its weights.
        """
        self.model.layer(layer)
        if layer not in self._whole and self.has_attention:
            self._whole = dict(self._capture(attention=[layer], layers=[]).attention)
        if layer not in self._whole:
            raise ModelError(
                f"{self.model.name} hides its attention weights",
                hint="its heads can be read, but not where they attend",
            )
        return self._whole[layer][0]

    @torch.no_grad()
    def _capture(
        self,
        *,
        attention: Sequence[int],
        positions: Sequence[int] | None = None,
        layers: Sequence[int] | None = None,
    ) -> Captured:
        wanted = attention if self.has_attention else ()
        with intervene(self.model, self.changes) if self.changes else nullcontext():
            try:
                return capture(
                    self.model,
                    self.ids,
                    layers=layers,
                    residual=layers is None,
                    attention=wanted,
                    attention_positions=positions,
                )
            except ModelError:
                if not wanted:
                    raise
                self.has_attention = False
                return capture(self.model, self.ids, layers=layers, residual=layers is None)


def _refuse_longer(n_tokens: int, limit: int) -> None:
    if limit and n_tokens > limit:
        raise UsageError(
            f"the text is too long: it has {n_tokens} tokens, and at most {limit} are shown",
            hint="shorten the text, or read its end only",
        )
