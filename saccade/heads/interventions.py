"""Change what heads write while the model runs: ablate, scale, patch, inject.

Everything happens at the tap: the input of the attention's output projection, where the heads are
apart (grouped ones too), so it works under every kernel and for every model that opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import InterventionError, UsageError
from saccade.heads.capture import Readable, capture
from saccade.heads.changes import (
    Ablate,
    Change,
    InjectHead,
    InjectResidual,
    Patch,
    Scale,
)
from saccade.heads.intervening import Touched, session_of

__all__ = [
    "Ablate",
    "Change",
    "InjectHead",
    "InjectResidual",
    "Patch",
    "Scale",
    "Touched",
    "check_change",
    "intervene",
    "mean_z",
]


@contextmanager
def intervene(
    model: Readable, changes: Change | Sequence[Change], *, may_do_nothing: bool = False
) -> Iterator[tuple[Touched, ...]]:
    """Change every forward pass of the model inside: a run, a capture, a generation, a reading.

    Changes of one head are made in their order, those of an outer block first. Positions are those
    of the whole text, also while generating with a cache. Without a cache each pass is a text of
    its own, with an end of its own for negative positions to count from.

    Args:
        may_do_nothing: for a search, in which a change that changes nothing is an answer.

    Yields:
        For each change, what it has done so far.

    Raises:
        InterventionError: a change cannot be made; or, on leaving, one of them changed nothing.
    """
    changes = [changes] if isinstance(changes, Change) else list(changes)
    if not changes:
        raise InterventionError("there is no change to make", hint="give at least one")
    for change in changes:
        check_change(model, change)
    touched = tuple(Touched(change) for change in changes)
    with session_of(model) as session:
        before = len(session.active)
        session.active.extend(touched)
        try:
            for change in changes:
                session.hook(model.layer(change.layer))
            yield touched
        finally:
            del session.active[before:]
    if not may_do_nothing:
        for each in touched:
            each.refuse_if_nothing()


@torch.no_grad()
def mean_z(
    model: Readable,
    ids: Int[Tensor, "batch pos"] | Iterable[Int[Tensor, "_ _"]],
    *,
    mask: Bool[Tensor, "batch pos"] | None = None,
) -> dict[int, Float[Tensor, "head d_head"]]:
    """By layer: the mean activation of each head over the tokens of a text.

    Special tokens and the first one are left out: attention rests there, and what heads hold there
    is unlike the rest (`saccade.heads.encoding`).

    Args:
        ids: one batch of texts, or batches of a longer one.
        mask: True = a real token; for one batch only.
    """
    sums: dict[int, Tensor] = {}
    n_tokens = 0
    for batch in [ids] if isinstance(ids, Tensor) else ids:
        real = model.encoding.is_text(batch)
        real = real if mask is None else real & mask.to(real.device)
        for layer, z in capture(model, batch, mask=mask).z.items():
            total = z[real.to(z.device)].double().sum(0)  # [head, d_head]
            sums[layer] = sums[layer] + total if layer in sums else total
        n_tokens += int(real.sum())
    if not n_tokens:
        raise InterventionError(
            "there is no text to take a mean over: only special or first tokens",
            hint="give texts of at least two tokens",
        )
    return {layer: (total / n_tokens).float() for layer, total in sums.items()}


def check_change(model: Readable, change: Change) -> None:
    """Raise an `InterventionError` unless the change can be made to this model."""
    try:
        layer = model.layer(change.layer)
    except UsageError as error:
        raise InterventionError(str(error), hint=error.hint) from error
    if not isinstance(change, InjectResidual) and not 0 <= change.head < layer.n_heads:
        raise InterventionError(
            f"no head {change.head} in layer {change.layer}: it has heads 0-{layer.n_heads - 1}",
            hint="heads are counted from 0, in each layer anew",
        )
    if change.positions is not None and not len(change.positions):
        raise InterventionError(
            "a change at no position changes nothing", hint="give positions, or None for all"
        )
    change.check(d_head=layer.d_head, d_model=int(model.unembedding.weight.shape[1]))
