"""A requested change to a model, and the intervention it becomes for a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.effects.replacement import Ablation
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate, Change, Patch, Scale
from saccade.interp.studies.edit.injection import Form, Injection, Memory

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses

SEED = 0  # of the positions that are drawn for "resample"
Positions: TypeAlias = tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class AskedChange:
    """One requested change, as it is written in JSON."""

    kind: Literal["ablate", "scale", "patch", "inject"]
    layer: int
    head: int | None = None
    """None for the residual stream after the layer, which only accepts injections."""
    by: Ablation = "zero"
    """What replaces the activation of an ablated head: zero, its mean over a text, or its
    activations at random positions of that text."""
    factor: float = 1.0
    source: str | None = None
    """The prompt a patch is taken from."""
    memory: str = ""
    """The token or text of an injection."""
    strength: float = 1.0
    """Relative to the norm of the activation that is there."""
    form: Form = "unembedding"
    positions: Positions = None
    """Of the prompt; None for all, and for the tokens generated after it."""


class Elsewhere:
    """The activations of heads over another text, captured at first use.

    Args:
        text: returns the text; called only if a change needs it.
    """

    def __init__(self, model: LanguageModel, text: Callable[[], Int[Tensor, "batch pos"]]) -> None:
        self._model, self._text = model, text

    @cached_property
    def _activation(self) -> dict[int, Float[Tensor, "text head d_head"]]:
        z = capture(self._model, self._text()).z
        return {layer: each.flatten(0, 1) for layer, each in z.items()}

    def mean(self, layer: int, head: int) -> Float[Tensor, " d_head"]:
        """The mean activation of a head."""
        return self._activation[layer][:, head].mean(0)

    def drawn(self, layer: int, head: int, n: int) -> Float[Tensor, "n d_head"]:
        """Activations of a head at random positions, the same ones at every call."""
        z = self._activation[layer][:, head]
        generator = torch.Generator().manual_seed(SEED)
        return z[torch.randint(len(z), (n,), generator=generator)]


@torch.no_grad()
def make_change(
    model: LanguageModel,
    asked: AskedChange,
    *,
    prompt: str,
    elsewhere: Elsewhere,
    lenses: Lenses | None = None,
) -> Change:
    """The change as `saccade.interp.heads.intervene` takes it.

    Args:
        prompt: what the model reads; an injection is scaled to the activation there.
        lenses: for injections through the lens.
    """
    if asked.kind == "inject":
        return _injection(model, asked, prompt, lenses)
    if asked.head is None:
        raise UsageError(
            f"cannot {asked.kind} the residual stream after layer {asked.layer}",
            hint="name a head, or use an injection",
        )
    where = (asked.layer, asked.head)
    model.check_head(*where)
    if asked.kind == "scale":
        return Scale(*where, asked.factor, asked.positions)
    if asked.kind == "patch":
        return _patch(model, asked, prompt)
    if asked.by == "zero":
        return Ablate(*where, positions=asked.positions)
    if asked.by == "mean":
        return Ablate(*where, "mean", elsewhere.mean(*where), asked.positions)
    drawn = elsewhere.drawn(*where, 1 if asked.positions is None else len(asked.positions))
    value = drawn[0] if asked.positions is None else drawn
    return Ablate(*where, "resample", value, asked.positions)


def _injection(
    model: LanguageModel, asked: AskedChange, prompt: str, lenses: Lenses | None
) -> Injection:
    if not 0 < abs(asked.strength) < float("inf"):
        raise UsageError(
            f"a strength must be a number other than 0, got {asked.strength}",
            hint="strength 1 has the norm of the activation that is there",
        )
    memory = Memory(model, asked.memory, form=asked.form, lenses=lenses)
    model.layer(asked.layer)  # refuses a wrong layer before anything runs
    activation = capture(model, model.encode(prompt), layers=[asked.layer], residual=True)
    positions = (-1,) if asked.positions is None else asked.positions
    place = (asked.layer, asked.head)
    return memory.injection(activation, place, strength=asked.strength, positions=positions)


def _patch(model: LanguageModel, asked: AskedChange, prompt: str) -> Patch:
    assert asked.head is not None, "checked before"
    if asked.source is None:
        raise UsageError(
            "a patch needs a head and the prompt it is taken from", hint="give both of them"
        )
    there, here = model.encode(asked.source), model.encode(prompt)
    n_there, n_here = there.shape[1], here.shape[1]
    if asked.positions is None and n_there != n_here:
        raise UsageError(
            f"the other prompt has {n_there} tokens, this one {n_here}",
            hint="give two prompts of the same number of tokens, or patch at some positions only",
        )
    at = tuple(range(-n_here, 0)) if asked.positions is None else asked.positions
    if outside := [each for each in at if not -n_there <= each < n_there]:
        raise UsageError(
            f"position {outside[0]} is not in the other prompt, which has {n_there} tokens",
            hint="positions count tokens from 0; negative ones count from the end of both prompts",
        )
    z = capture(model, there, layers=[asked.layer]).z[asked.layer]
    return Patch(asked.layer, asked.head, z[0, list(at), asked.head], at)
