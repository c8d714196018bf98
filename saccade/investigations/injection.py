"""A memory in one of its forms, ready to be injected anywhere behind a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from torch import Tensor

from saccade.errors import UsageError
from saccade.heads import Captured, InjectHead, InjectResidual, head_outputs
from saccade.investigations.memory import (
    lens_memory,
    memory_words,
    text_memory,
    unembedding_memory,
)

if TYPE_CHECKING:
    from saccade.heads import LanguageModel
    from saccade.lenses.collection import Lenses

Form: TypeAlias = Literal["unembedding", "lens", "text"]
Injection: TypeAlias = InjectHead | InjectResidual
Place: TypeAlias = tuple[int, int | None]
"""A head, as (layer, head); or the residual stream after a layer, as (layer, None)."""


class Memory:
    """What is injected for a memory, at any place of a model.

    Args:
        form: its words through the unembedding, its words through the inverse of a head's lens,
            or what the model holds at the last token of the memory read as a text.
        lenses: for the form "lens".
    """

    def __init__(
        self, model: LanguageModel, text: str, *, form: Form, lenses: Lenses | None = None
    ) -> None:
        self.model, self.form, self._lenses = model, form, lenses
        # Of a text, the last word is what it leads to.
        said = " ".join(text.split()[-1:]) if form == "text" else text
        self.words = memory_words(model, said)
        self._read = text_memory(model, text) if form == "text" else None
        self._direction = unembedding_memory(model, self.words)

    def injection(
        self,
        held: Captured,
        place: Place,
        *,
        strength: float,
        positions: Sequence[int] | None = (-1,),
    ) -> Injection:
        """The change that puts the memory at a place.

        Strength 1 is as much as the place holds itself; of a text, it takes its place.

        Args:
            held: the prompt, captured with ``residual=True`` and this layer.
            positions: of the prompt; None for all, with one vector for the mean of its tokens.
        """
        layer, head = place
        here = held.residual[layer][0] if head is None else held.z[layer][0]
        here = here.mean(0, keepdim=True) if positions is None else here[list(positions)]
        vector = self._vector(layer, head, here)
        vector = vector[0] if len(vector) == 1 else vector
        asked = None if positions is None else tuple(positions)
        if head is None:
            return InjectResidual(layer, vector, strength, asked)
        return InjectHead(layer, head, vector, strength, asked)

    def _vector(self, layer: int, head: int | None, here: Tensor) -> Tensor:
        """One vector a position, ``[pos, d]``, for what is there, ``[pos, head, d]`` of heads."""
        if head is None:
            if self.form == "lens":
                raise UsageError(
                    f"a memory through the lens needs a head, got only layer {layer}",
                    hint=f"name a head, such as {layer}.0, or take another form",
                )
            if self._read is not None:
                return self._read.residual[layer] - here
            return _as_long_as(here, self._direction)
        self.model.check_head(layer, head)
        if self._read is not None:
            return self._read.z[layer][head] - here[:, head]
        if self.form == "lens":
            assert self._lenses is not None, "the form lens comes with lenses"
            inverse = lens_memory(self._lenses, layer, head, self._direction)
            return _as_long_as(here[:, head], inverse)
        written = head_outputs(self.model.layer(layer), here)[:, head]
        return _as_long_as(written, self._direction)


def _as_long_as(here: Tensor, direction: Tensor) -> Tensor:
    return here.float().norm(dim=-1, keepdim=True) * direction.to(here.device)
