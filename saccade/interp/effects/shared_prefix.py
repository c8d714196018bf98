"""Run many changed copies of a text's last token, which all share the text before it.

Ablating a head at the last token changes nothing before it: keys and values of the prefix are those
of the plain run. So the prompt is run once, and then one more pass runs the last token alone, once
for every change. In each block all copies stand in one row: each sees the prefix and itself, at the
position of the last token, by a mask. A copy joins at the layer that it changes, with the residual
stream that the plain run had there, so that on average half of the layers are computed.

Nothing is known about the family of the model: each block is called as it was called in the plain
run, with the arguments of the last position. The first copy changes nothing, and must end in the
final state of the plain run. Where it does not (position biases that count keys, kernels without
masks), the copies stand in the batch instead, each a row with the prefix's keys and values before
it, as in generation; and where that fails, too, the whole prompt is run for every copy. All three
give the same states; `SharedPrefix.method` tells which it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache

from saccade.interp.heads.capture import Captured, Readable, agree, capture, run_base
from saccade.interp.heads.rerun import all_blocks
from saccade.interp.heads.taps import HeadLayer

Method: TypeAlias = Literal["mask", "batch", "whole"]

ROWS_AT_ONCE = 16  # of the two slower methods, which need the prefix's keys and values in each row


class HeadValue(NamedTuple):
    """A head, and what its activation at the last token is replaced by."""

    layer: int
    head: int
    value: Float[Tensor, " d_head"]


class _Block(NamedTuple):
    """How one block was called at the last position."""

    module: nn.Module
    kwargs: dict[str, Any]
    enters: Float[Tensor, "1 1 d_model"]
    """The residual stream that entered it."""


@dataclass(frozen=True)
class SharedPrefix:
    """One plain run of a text, ready for changed copies of its last token."""

    captured: Captured
    """The plain run, with activations at the last position only."""
    method: Method
    ids: Int[Tensor, "1 pos"]
    _model: Readable
    _blocks: tuple[_Block, ...]
    _cache: DynamicCache
    """Keys and values of every position but the last."""

    @classmethod
    @torch.no_grad()
    def record(cls, model: Readable, ids: Int[Tensor, "1 pos"], **wanted: Any) -> SharedPrefix:
        """Run a text once. ``wanted`` goes to `capture`: attention, residual."""
        cache = DynamicCache()
        last = torch.tensor([[ids.shape[1] - 1]])
        calls: list[_Block] = []
        with ExitStack() as stack:
            for block in all_blocks(model.hf, model.layers[0]):
                stack.enter_context(
                    block.register_forward_pre_hook(
                        partial(_record, calls, ids.shape[1]), with_kwargs=True
                    )
                )
            captured = capture(model, ids, positions=last, cache=cache, **wanted)
        cache.crop(-1)  # a negative number is how many tokens are removed
        found = cls(captured, "mask", ids, model, tuple(calls), cache)
        return found._checked()

    def _checked(self) -> SharedPrefix:
        """With the fastest method whose unchanged copy ends where the plain run did."""
        # Three copies that change nothing: one from the start, one that joins at the first layer
        # with heads, one at the last, each with the activation that its head has anyway.
        ends = (self._model.layers[0].index, self._model.layers[-1].index)
        same = [HeadValue(layer, 0, self.captured.z[layer][0, 0, 0]) for layer in ends]
        for method in ("mask", "batch"):
            tried = replace(self, method=method)
            try:
                states = tried.states(same)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                continue  # a block that cannot be called so
            plain = self.captured.final[0].expand_as(states)
            if agree(states, plain, dtype=self._model.hf.dtype):
                return tried
        return replace(self, method="whole")

    @torch.no_grad()
    def states(self, changes: Sequence[HeadValue]) -> Float[Tensor, "copy d_model"]:
        """The final normed state without a change, then with each of the changes alone."""
        if self.method == "mask":
            return self._masked(changes)
        starts = range(0, len(changes), ROWS_AT_ONCE)
        parts = [self._batched(changes[start : start + ROWS_AT_ONCE]) for start in starts]
        return torch.cat([self._batched([None]), *parts])

    def _masked(self, changes: Sequence[HeadValue]) -> Tensor:
        """All copies in one row."""
        order = sorted(range(len(changes)), key=lambda i: changes[i].layer)
        sorted_changes = [changes[i] for i in order]
        by_block = {id(at.block): at for at in self._model.layers}
        cache = _Prefix(self._cache)
        stream, joined = self._blocks[0].enters, 1
        for block in self._blocks:
            at = by_block.get(id(block.module))
            here = [] if at is None else [c for c in sorted_changes if c.layer == at.index]
            if here:
                joining = block.enters.expand(1, len(here), -1)
                stream = torch.cat([stream, joining], dim=1)
            rows = range(joined, joined + len(here))
            joined += len(here)
            kwargs = _for_copies(block.kwargs, cache, joined, self.ids.shape[1] - 1, stream)
            with ExitStack() as stack:
                if at is not None and here:
                    hook = partial(_replace, at, _indexed(here, rows))
                    stack.enter_context(at.projection.register_forward_pre_hook(hook))
                found = block.module(stream, **kwargs)
            stream = found[0] if isinstance(found, tuple | list) else found
        final = self._model.final_norm.module(stream)[0]  # [copy, d_model]
        places = torch.empty(len(changes) + 1, dtype=torch.long)
        places[0] = 0
        places[torch.tensor(order, dtype=torch.long) + 1] = torch.arange(1, len(changes) + 1)
        return final[places.to(final.device)]

    def _batched(self, changes: Sequence[HeadValue | None]) -> Tensor:
        """Copies in the batch: behind the prefix's cache, or with the whole prompt."""
        real = [(row, change) for row, change in enumerate(changes) if change is not None]
        with ExitStack() as stack:
            for at in self._model.layers:
                here = [(row, change) for row, change in real if change.layer == at.index]
                if here:
                    indexed = _indexed([c for _, c in here], [row for row, _ in here])
                    hook = partial(_replace_last, at, indexed, len(changes))
                    stack.enter_context(at.projection.register_forward_pre_hook(hook))
            hf = self._model.hf
            if self.method == "whole":
                return run_base(hf, self.ids.expand(len(changes), -1))[:, -1]
            cache, rows = DynamicCache(), (len(changes), -1, -1, -1)
            for index in range(len(self._cache.layers)):
                keys, values = _stored(self._cache, index)
                cache.update(keys.expand(*rows), values.expand(*rows), index)
            return run_base(hf, self.ids[:, -1:].expand(len(changes), -1), cache=cache)[:, -1]


class _Prefix(DynamicCache):
    """Gives each layer the prefix's keys and values before its own, and keeps nothing."""

    def __init__(self, prefix: DynamicCache) -> None:
        super().__init__()
        self.prefix = prefix

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = _stored(self.prefix, layer_idx)
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.prefix.get_seq_length(layer_idx)


def _stored(cache: DynamicCache, index: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer; a layer without them cannot be run so."""
    layer: Any = cache.layers[index]
    if layer.keys is None or layer.values is None:
        raise ValueError(f"layer {index} caches no keys and values")
    return layer.keys, layer.values


def _record(
    calls: list[_Block],
    n_tokens: int,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    stream = args[0] if args else kwargs["hidden_states"]
    names = list(inspect.signature(module.forward).parameters)  # some models give them by place
    rest = dict(zip(names[1:], args[1:], strict=False)) | kwargs
    kept = {k: _last(v, n_tokens) for k, v in rest.items() if k != "hidden_states"}
    calls.append(_Block(module, kept, stream[:, -1:]))


def _last(value: Any, n_tokens: int) -> Any:
    """An argument of a block as it is for the last position alone."""
    if isinstance(value, tuple):
        return tuple(_last(each, n_tokens) for each in value)
    if not isinstance(value, Tensor) or n_tokens == 1:
        return value
    if value.dim() == 4 and value.shape[-2] == n_tokens:  # a mask or a bias
        return value[..., -1:, :]
    if value.dim() in (2, 3) and value.shape[1] == n_tokens:  # positions, rotations
        return value[:, -1:]
    if value.dim() == 1 and value.shape[0] == n_tokens:
        return value[-1:]
    return value


def _for_copies(
    kwargs: Mapping[str, Any], cache: _Prefix, n_copies: int, n_prefix: int, stream: Tensor
) -> dict[str, Any]:
    """The arguments of a block for several copies of the last position."""
    found = dict(kwargs)
    for name in ("past_key_values", "past_key_value", "layer_past"):
        if isinstance(found.get(name), DynamicCache):
            found[name] = cache
    for name in ("position_ids", "cache_position"):
        if isinstance(found.get(name), Tensor):
            shape = (-1, n_copies) if found[name].dim() == 2 else (n_copies,)
            found[name] = found[name].expand(*shape)
    least = torch.finfo(stream.dtype).min
    mask = stream.new_full((1, 1, n_copies, n_prefix + n_copies), least)
    mask[..., :n_prefix] = _visible(found.get("attention_mask"), n_prefix, stream, least)
    mask[..., n_prefix:].diagonal(dim1=-2, dim2=-1).fill_(0.0)
    if "attention_mask" in found:
        found["attention_mask"] = mask
    return found


def _visible(mask: Any, n_prefix: int, stream: Tensor, least: float) -> Tensor:
    """The row of an additive mask: which positions of the prefix the last token sees."""
    if not isinstance(mask, Tensor):
        return stream.new_zeros(n_prefix)
    row = mask[0, :, -1:, :n_prefix] if mask.dim() == 4 else mask[0, :n_prefix]
    if row.dtype == torch.bool:
        return torch.zeros_like(row, dtype=stream.dtype).masked_fill(~row, least)
    return row.to(stream.dtype)


class _Indexed(NamedTuple):
    rows: Int[Tensor, " change"]
    heads: Int[Tensor, " change"]
    values: Float[Tensor, "change d_head"]


def _indexed(changes: Sequence[HeadValue], rows: Sequence[int]) -> _Indexed:
    return _Indexed(
        torch.tensor(list(rows)),
        torch.tensor([change.head for change in changes]),
        torch.stack([change.value for change in changes]),
    )


def _replace(at: HeadLayer, new: _Indexed, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    flat = args[0]
    z = flat.reshape(-1, at.n_heads, at.d_head).clone()  # [copy, head, d_head]
    z[new.rows, new.heads] = new.values.to(z)
    return (z.reshape(flat.shape), *args[1:])


def _replace_last(
    at: HeadLayer, new: _Indexed, n_rows: int, _: nn.Module, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    flat = args[0]
    z = flat.reshape(n_rows, -1, at.n_heads, at.d_head).clone()  # [row, pos, head, d_head]
    z[new.rows, -1, new.heads] = new.values.to(z)
    return (z.reshape(flat.shape), *args[1:])
