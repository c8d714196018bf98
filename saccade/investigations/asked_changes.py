"""Ablations, scalings and patches as a user asks for them, made into changes of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.heads import Ablate, Change, Patch, Scale, capture, mean_z
from saccade.investigations.replacement import Ablation

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

Head: TypeAlias = tuple[int, int]  # layer, head
SEED = 0  # of the places that are drawn for "resample"


@dataclass(frozen=True, kw_only=True)
class AskedChanges:
    """What is to be changed, all of it at the same positions."""

    ablate: Sequence[Head] = ()
    by: Ablation = "zero"
    """What takes the place of an ablated head: nothing, its mean over a text, or what it held at
    random places of that text."""
    scale: Sequence[tuple[Head, float]] = ()
    patch: Sequence[Head] = ()
    other: str | None = None
    """The prompt that is patched from."""
    positions: Sequence[int] | None = None
    """Of the prompt, counted from its end; None for all, and for what is generated behind it."""

    def __post_init__(self) -> None:
        if bool(self.patch) != (self.other is not None):
            raise UsageError(
                "a patch needs a head and the prompt it is taken from",
                hint="give both --patch and --from",
            )


@torch.no_grad()
def make_changes(
    model: LanguageModel, asked: AskedChanges, *, prompt: str, reference: Int[Tensor, "batch pos"]
) -> tuple[Change, ...]:
    """The changes, in the order ablate, scale, patch.

    Args:
        reference: the text that "mean" and "resample" are taken from.
    """
    for each in (*asked.ablate, *asked.patch, *(head for head, _ in asked.scale)):
        model.check_head(*each)
    at = None if asked.positions is None else tuple(asked.positions)
    made: list[Change] = [_ablate(model, head, asked, reference) for head in asked.ablate]
    made += [Scale(*head, factor, at) for head, factor in asked.scale]
    if asked.other is not None:
        made += _patches(model, asked, prompt=prompt, other=asked.other)
    return tuple(made)


def _ablate(
    model: LanguageModel, head: Head, asked: AskedChanges, reference: Int[Tensor, "batch pos"]
) -> Ablate:
    at = None if asked.positions is None else tuple(asked.positions)
    layer, number = head
    if asked.by == "zero":
        return Ablate(*head, positions=at)
    if asked.by == "mean":
        return Ablate(*head, "mean", mean_z(model, reference)[layer][number], at)
    z = capture(model, reference, layers=[layer]).z[layer][:, :, number].flatten(0, 1)
    generator = torch.Generator().manual_seed(SEED)
    drawn = z[torch.randint(len(z), (1 if at is None else len(at),), generator=generator)]
    return Ablate(*head, "resample", drawn[0] if at is None else drawn, at)


def _patches(model: LanguageModel, asked: AskedChanges, *, prompt: str, other: str) -> list[Change]:
    z = capture(model, model.encode(other)).z
    n_other, n_here = (model.encode(text).shape[1] for text in (other, prompt))
    if asked.positions is None and n_other != n_here:
        raise UsageError(
            f"the other prompt has {n_other} tokens, this one {n_here}",
            hint="give two prompts of as many tokens, or patch at some of them only",
        )
    at = tuple(range(-n_here, 0)) if asked.positions is None else tuple(asked.positions)
    if -min(at) > n_other:
        raise UsageError(
            f"position {min(at)} is not in the other prompt, which has {n_other} tokens",
            hint="positions are counted from the end of both prompts",
        )
    return [Patch(layer, head, z[layer][0, list(at), head], at) for layer, head in asked.patch]
