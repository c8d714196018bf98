"""The attention weights of chosen layers and positions, computed next to the model's own kernel.

`record_attention` keeps them; `recorded_queries` hands them on with queries and keys, one layer at
a time, and keeps nothing; `recorded_kernels` does so with all that a layer's scores are made of.

The model is not switched to eager attention. There are three ways, and the first that works is
used:

1. the implementation registered in transformers' ``AttentionInterface`` (sdpa, flash, a user's
   own) is wrapped during the run: it passes queries and keys on, and the weights are computed
   from them;
2. for models that call torch's ``scaled_dot_product_attention`` themselves (Falcon), a torch
   function mode does the same;
3. eager models return the weights with their result.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, PreTrainedModel

from saccade.errors import ModelError
from saccade.interp.heads.taps import HeadLayer

NEGATIVE = -1e30  # finite, so that a row that may attend to nothing gives no NaN


@contextmanager
def record_attention(
    hf: PreTrainedModel, layers: Sequence[HeadLayer], positions: Sequence[int] | None
) -> Iterator[dict[int, Tensor]]:
    """Fill a dict with the attention weights of ``layers`` while the model runs inside.

    Raises:
        ModelError: none of the three ways gives the weights of the model's attention kernel.
    """
    rows: dict[int, Tensor] = {}
    if not layers:
        yield rows
        return
    recorder = _Recorder(layers, positions, rows)
    with _recording(hf, recorder):
        yield rows
    if missing := [layer.index for layer in layers if layer.index not in rows]:
        raise ModelError(
            f"could not see the attention weights of layer {missing[0]}: the model runs "
            f"{_kernel(hf)!r} attention, which hides them",
            hint="read the heads of this model without attention weights",
        )


GiveQueries: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], None]
"""Called with the index of a layer, its queries ``[batch, head, pos, d_head]``, its keys
``[batch, key_head, pos, d_head]`` and its weights ``[batch, head, query_pos, key_pos]``."""


@contextmanager
def recorded_queries(
    hf: PreTrainedModel, layers: Sequence[HeadLayer], give: GiveQueries
) -> Iterator[None]:
    """Call ``give`` for each of ``layers``, in each run inside the block, while the layer runs.

    Queries and keys are those that the attention kernel gets: with position (rotary) and norms,
    without the scale of the scores (a model may fold it into the query). Nothing is kept between
    layers: memory is that of one layer's weights.

    Raises:
        ModelError: a layer's kernel shows no queries and keys. It is raised in the run.
    """
    with recorded_kernels(hf, layers, partial(_give_queries, give)):
        yield


class KernelInput(NamedTuple):
    """What the attention kernel of one layer gets.

    ``weights = softmax(scores + mask)``, ``scores = scaling * query @ key^T``; with a soft-cap,
    ``softcap * tanh(scores / softcap)`` takes their place.
    """

    query: Tensor
    """``[batch, head, pos, d_head]``"""
    key: Tensor
    """``[batch, key_head, pos, d_head]``"""
    value: Tensor
    """``[batch, key_head, pos, d_value]``"""
    mask: Tensor | None
    """``[batch, head, query_pos, key_pos]``, any axis of size 1; True = may attend, or a number to
    add."""
    scaling: float
    softcap: float | None


GiveKernel: TypeAlias = Callable[[int, KernelInput, Tensor], None]
"""Called with the index of a layer, the input of its kernel, and its weights."""


@contextmanager
def recorded_kernels(
    hf: PreTrainedModel, layers: Sequence[HeadLayer], give: GiveKernel
) -> Iterator[None]:
    """As `recorded_queries`, with values, mask and scale."""
    with _recording(hf, _Recorder(layers, None, {}, give)) if layers else nullcontext():
        yield


def _give_queries(give: GiveQueries, layer: int, kernel: KernelInput, weights: Tensor) -> None:
    give(layer, kernel.query, kernel.key, weights)


@contextmanager
def _recording(hf: PreTrainedModel, recorder: _Recorder) -> Iterator[None]:
    name = _kernel(hf)
    # Eager is not registered: each family has its own, beside its attention.
    own = AttentionInterface().get(name)
    uses_interface = all(map(_uses_interface, recorder.index))
    if own is None and recorder.give is not None and uses_interface:
        own = _eager
    with ExitStack() as stack:
        for attention in recorder.index:
            stack.enter_context(attention.register_forward_pre_hook(recorder.enter))
            stack.enter_context(attention.register_forward_hook(recorder.leave))
        if own is not None:
            stack.enter_context(_wrapped(name, own, recorder))
        # The mode sees every call of torch and would cost a fifth of a short run: it is for the
        # models that do not go through the interface.
        if own is None or not uses_interface:
            stack.enter_context(_WatchKernel(recorder))
        yield


def _kernel(hf: PreTrainedModel) -> str:
    return hf.config._attn_implementation or "eager"


def _eager(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return sys.modules[type(module).__module__].eager_attention_forward(module, *args, **kwargs)


def _uses_interface(attention: nn.Module) -> bool:
    code = inspect.unwrap(type(attention).forward).__code__
    return "ALL_ATTENTION_FUNCTIONS" in code.co_names


class _Recorder:
    """Knows which chosen attention module is running, and computes its weights once."""

    def __init__(
        self,
        layers: Sequence[HeadLayer],
        positions: Sequence[int] | None,
        rows: dict[int, Tensor],
        give: GiveKernel | None = None,
    ) -> None:
        self.index = {layer.attention: layer.index for layer in layers}
        self.positions = None if positions is None else list(positions)
        self.rows = rows
        self.give = give
        self.running: int | None = None

    def enter(self, module: nn.Module, _: tuple[Any, ...]) -> None:
        self.running = self.index[module]

    def leave(self, module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        if self.give is not None:
            if self.rows.pop(self.index[module], None) is None:
                raise ModelError(
                    f"could not see the queries and keys of layer {self.index[module]}: "
                    f"{type(module).__name__} computes its scores by itself",
                    hint='load the model with attn_implementation="sdpa", or leave out what needs '
                    "queries and keys",
                )
            self.running = None
            return
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if self.is_waiting and isinstance(weights, Tensor) and weights.dim() == 4:
            self.rows[self.index[module]] = self.pick(weights)
        self.running = None

    @property
    def is_waiting(self) -> bool:
        return self.running is not None and self.running not in self.rows

    def pick(self, per_query: Tensor) -> Tensor:
        """Only the requested query positions of ``[batch, head, query_pos, ...]``."""
        return per_query if self.positions is None else per_query[:, :, self.positions]

    def compute(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        scaling: float | None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """``softmax(query key^T * scaling + mask)``, mask ``[batch, head, query_pos, key_pos]``."""
        assert self.running is not None
        q, k = self.pick(query).float(), key.float()
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # one key head for each head
        factor: float = q.shape[-1] ** -0.5 if scaling is None else scaling
        scores = q @ k.transpose(-1, -2) * factor
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if mask is not None:
            picked = self.pick(mask) if mask.shape[2] == query.shape[2] else mask
            picked = picked[..., : k.shape[2]]
            if picked.dtype == torch.bool:
                scores = scores.masked_fill(~picked, NEGATIVE)
            else:
                scores = scores + picked
        if sinks is not None:  # GPT-OSS: a learned score that takes weight and gives nothing
            sink = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], dim=-1)
        weights = scores.softmax(-1)[..., : k.shape[2]].to(query.dtype)
        if self.give is not None:
            self.give(self.running, KernelInput(query, key, value, mask, factor, softcap), weights)
            weights = weights[:0]  # only tells that this layer was seen in this run
        self.rows[self.running] = weights


@contextmanager
def _wrapped(name: str, own: Callable[..., Any], recorder: _Recorder) -> Iterator[None]:
    """Replace the registered implementation by one that passes queries and keys to the recorder."""

    def beside(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        # transformers' own signature: all other arguments are passed on unchanged.
        if recorder.is_waiting and (attention_mask is None or isinstance(attention_mask, Tensor)):
            bias = kwargs.get("position_bias")
            mask = _full_mask(query, key, attention_mask, kwargs.get("sliding_window"))
            if bias is not None:
                mask = (
                    bias.float().masked_fill(~mask, NEGATIVE)
                    if mask.dtype == torch.bool
                    else bias + mask
                )
            recorder.compute(
                query,
                key,
                value,
                mask=mask,
                scaling=kwargs.get("scaling"),
                softcap=kwargs.get("softcap"),
                sinks=kwargs.get("s_aux"),
            )
        return own(module, query, key, value, attention_mask, *args, **kwargs)

    AttentionInterface.register(name, beside)
    try:
        yield
    finally:
        if own is _eager:
            AttentionInterface._global_mapping.pop(name)
        else:
            AttentionInterface.register(name, own)


def _full_mask(query: Tensor, key: Tensor, mask: Tensor | None, window: int | None) -> Tensor:
    """``[batch, head, query_pos, key_pos]``, True = may attend (or a float to add)."""
    if mask is not None and mask.dim() == 4:
        return mask
    n_queries, n_keys = query.shape[2], key.shape[2]
    at = torch.arange(n_keys - n_queries, n_keys, device=query.device)[:, None]
    keys = torch.arange(n_keys, device=query.device)
    may = keys <= at
    if window is not None and mask is not None:  # flash kernels get the window as a number
        may = may & (keys > at - window)
    may = may[None, None]
    if mask is not None:  # flash kernels get [batch, key_pos]
        may = may & mask[:, None, None, -n_keys:].bool()
    return may


class _WatchKernel(TorchFunctionMode):
    """Sees calls of torch's own attention kernel while a chosen layer runs."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention and self.recorder.is_waiting:
            self._show(args, kwargs)
        return func(*args, **kwargs)

    def _show(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, value = given["query"], given["key"], given["value"]
        mask = given.get("attn_mask")
        if given.get("is_causal"):
            may = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
            mask = may.tril()[None, None]
        self.recorder.compute(query, key, value, mask=mask, scaling=given.get("scale"))
