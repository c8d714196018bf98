"""Intervene on heads while the model runs: ablate, scale, patch, inject.

Everything happens at the tap: the input of the attention's output projection, where the heads are
separate (grouped ones too), so it works with every kernel and every model that opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import InterventionError, UsageError
from saccade.interp.heads.capture import Readable, capture
from saccade.interp.heads.changes import (
    Ablate,
    Change,
    Chosen,
    HeadChange,
    HeadOutput,
    InjectHead,
    InjectResidual,
    PassWatcher,
    Patch,
    RunningPass,
    Scale,
    positions_of,
)
from saccade.interp.heads.taps import HeadLayer

# The hooks of an intervention, and the record of what they did.


@dataclass(eq=False)
class Touched:
    """The record of one change: what it has changed so far."""

    change: Change
    tokens: int = 0
    """Number of tokens with a changed activation, over all passes."""
    passes: int = 0
    """Number of forward passes."""
    reached: set[int] = field(default_factory=set)
    """The requested positions that a text had."""

    def note(self, chosen: Chosen, old: Tensor, new: Tensor) -> None:
        """Count the tokens where a pass with the change differs from one without."""
        self.tokens += int((old.detach() != new.detach()).any(-1).sum())
        self.passes += 1
        asked = positions_of(self.change)
        if asked is not None:
            self.reached.update(asked[i] for i in chosen.reached.nonzero()[:, 0].tolist())

    def refuse_if_nothing(self) -> None:
        """Raise an `InterventionError` unless the change has changed something."""
        change = self.change
        head = "" if isinstance(change, InjectResidual) else f" head {change.head}"
        name = f"{type(change).__name__} at layer {change.layer}{head}"
        if not self.passes:
            raise InterventionError(
                f"{name} changed nothing: the model did not run",
                hint="run the model inside the `with` block",
            )
        # Without explicit positions, values for more tokens than a text has are allowed.
        missing = sorted(set(change.positions or ()) - self.reached)
        if missing:
            raise InterventionError(
                f"{name} never reached position {missing[0]}: no text was that long",
                hint="positions count the real tokens from 0; -1 is the last of the prompt",
            )
        if not self.tokens:
            raise InterventionError(
                f"{name} changed nothing: its value equals the activation",
                hint="check its value, and the rows it is for",
            )


@contextmanager
def session_of(model: Readable) -> Iterator[Session]:
    """The session of a model, one at a time: an inner block joins the outer one's."""
    stack_of_blocks = _stack_of_blocks(model)
    for hook in stack_of_blocks._forward_pre_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, Session):
            yield owner
            return
    with ExitStack() as stack:
        yield Session(stack_of_blocks, stack)


class Session:
    """The hooks on one model. They run first, so that all other hooks see the changes."""

    def __init__(self, base: nn.Module, stack: ExitStack) -> None:
        self.active: list[Touched] = []
        self._stack = stack
        self._watcher = PassWatcher()
        self._hooked: set[int] = set()
        self._added: dict[int, Tensor] = {}
        keep = stack.enter_context
        keep(base.register_forward_pre_hook(self.enter, with_kwargs=True))
        keep(base.register_forward_hook(self._watcher.leave, always_call=True))

    def enter(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pre-hook of the base model."""
        self._added.clear()
        self._watcher.enter(base, args, kwargs)

    def hook(self, layer: HeadLayer) -> None:
        """Hook a layer until the session ends."""
        if layer.index in self._hooked:
            return
        self._hooked.add(layer.index)

        keep, projection = self._stack.enter_context, layer.projection
        before = partial(self._before, layer)
        keep(projection.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        keep(projection.register_forward_hook(partial(self._behind, layer), prepend=True))
        keep(layer.block.register_forward_hook(partial(self._after, layer), prepend=True))

    def _before(
        self, layer: HeadLayer, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Change the input of the projection."""
        if self._watcher.running is None or not self._of(layer, HeadChange):
            return None
        name = "" if args else "hidden_states"
        flat = args[0] if args else kwargs[name]
        changed = self._change_heads(layer, flat, self._watcher.running)
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, name: changed})

    def _behind(
        self, layer: HeadLayer, _: nn.Module, __: tuple[Any, ...], output: Tensor
    ) -> Tensor | None:
        """Add to the output of the projection."""
        added = self._added.pop(layer.index, None)
        return None if added is None else output + added.to(output).view(output.shape)

    def _after(self, layer: HeadLayer, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        """Change the stream after the block."""
        if self._watcher.running is None or not self._of(layer, InjectResidual):
            return None
        stream = output[0] if isinstance(output, tuple | list) else output
        changed = self._change_stream(layer, stream, self._watcher.running)
        is_plain = isinstance(output, Tensor)
        return changed if is_plain else type(output)([changed, *output[1:]])

    def _of(self, layer: HeadLayer, kind: Any) -> list[Touched]:
        return [
            each
            for each in self.active
            if each.change.layer == layer.index and isinstance(each.change, kind)
        ]

    def _change_heads(self, layer: HeadLayer, flat: Tensor, now: RunningPass) -> Tensor:
        # Some models flatten batch and position before they project.
        z = flat.reshape(*now.place.shape, layer.n_heads, layer.d_head)
        heads = [HeadOutput(each) for each in z.unbind(2)]
        for touched in self._of(layer, HeadChange):
            change = touched.change
            assert not isinstance(change, InjectResidual)
            chosen = now.choose(positions_of(change), change.rows)
            old = heads[change.head]
            new = heads[change.head] = change.at_head(old, chosen)
            touched.note(chosen, _both(old, like=new), _both(new, like=new))
        written = [head.added for head in heads if head.added is not None]
        if written:
            self._added[layer.index] = torch.stack(written).sum(0)
        return torch.stack([head.z for head in heads], 2).view(flat.shape)

    def _change_stream(self, layer: HeadLayer, stream: Tensor, now: RunningPass) -> Tensor:
        new = stream.reshape(*now.place.shape, stream.shape[-1])
        for touched in self._of(layer, InjectResidual):
            change = touched.change
            assert isinstance(change, InjectResidual)
            chosen = now.choose(positions_of(change), change.rows)
            old, new = new, change.at_stream(new, chosen)
            touched.note(chosen, old, new)
        return new.view(stream.shape)


def _stack_of_blocks(model: Readable) -> nn.Module:
    """The module that runs the blocks one after the other.

    It gets ids, mask and cache from every caller; some models (OPT) bypass their base.
    """
    parts = model.layers[0].path.split(".")
    depth = next(i for i, part in enumerate(parts) if part.isdigit())
    return model.hf.get_submodule(".".join(parts[: depth - 1]))


def _both(output: HeadOutput, *, like: HeadOutput) -> Tensor:
    """The activation of the head and what is added to its output, concatenated."""
    if like.added is None:
        return output.z
    added = torch.zeros_like(like.added) if output.added is None else output.added
    return torch.cat([output.z, added], -1)


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

    Changes of one head are applied in their order, those of an outer block first. Positions are
    those of the whole text, also while generating with a cache. Without a cache each pass is a
    separate text, and negative positions count from its end.

    Args:
        may_do_nothing: for a search, where a change without effect is a valid result.

    Yields:
        For each change, the record of what it has changed so far.

    Raises:
        InterventionError: a change cannot be made; or, on exit, one of them changed nothing.
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

    Special tokens and the first one are left out: they are attention sinks, with activations
    unlike all others (`saccade.interp.heads.model`).

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
            "there is no text to average over: only special or first tokens",
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
            hint="heads are counted from 0 in each layer",
        )
    if change.positions is not None and not len(change.positions):
        raise InterventionError(
            "a change at no position changes nothing", hint="give positions, or None for all"
        )
    change.check(d_head=layer.d_head, d_model=int(model.unembedding.weight.shape[1]))
