"""One pass of a model in which changed copies of the last token join the prompt.

In every block rows are appended to the prompt: one copy of the last token for each change. All
copies stand at the position of the last token; each attends to the prefix and to itself. A copy
joins at the layer that it changes, with the residual stream that the last token has there, so on
average half of the layers are computed for it.

Blocks get their arguments with one row more for each copy, and the attention implementation
registered with transformers is wrapped: it computes the prompt, and the copies' attention is
computed beside it. Where the keys and values of the text before are in a cache, the prompt is what
follows it: in generation, one token.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache

from saccade.interp.effects.parts import Change, FeedForwardValue, HeadsValue, besides_attention
from saccade.interp.heads.attention_weights import NEGATIVE, record_attention
from saccade.interp.heads.capture import Captured, Readable, agree, run_base
from saccade.interp.heads.onednn import fast_products
from saccade.interp.heads.taps import HeadLayer, all_blocks

Method: TypeAlias = Literal["joined", "batch", "whole"]


class CopyRun(NamedTuple):
    """One run of some prompts and of changed copies of their last tokens."""

    captured: Captured
    """The plain run at the last token of each prompt: position 0 of every tensor."""
    states: Float[Tensor, "batch copy d_model"]
    """The final normed state of each copy."""
    feed_forward: dict[int, Float[Tensor, "batch d_model"]]
    """By layer: what each block adds to the stream besides its attention, in the plain run. Only
    layers whose attention reaches the stream have an entry."""
    method: Method
    ends: Float[Tensor, "batch copy d_model"] | None = None
    """The input of the final norm of each copy, if the copies are kept."""
    copies: dict[int, Float[Tensor, "batch copy head d_head"]] | None = None
    """By layer: the activations of the heads of each copy, if they are kept."""


def run_joined(
    model: Readable,
    ids: Int[Tensor, "batch pos"],
    lengths: Sequence[int],
    changes: Sequence[Change],
    *,
    attention: bool,
    keep: bool = False,
    cache: DynamicCache | None = None,
) -> CopyRun | None:
    """One pass; None where the copy that changes nothing does not end as the plain run does.

    Args:
        changes: in the order in which the copies join: by layer, heads before feed-forward parts.
        keep: also keep the activations of the copies.
        cache: keys and values of the tokens before ``ids``, of one length for all prompts. Those
            of ``ids`` are appended, the copies' are not.
    """
    n_before = 0 if cache is None else cache.get_seq_length()
    joined = _JoinedPass(model, ids, lengths, changes, keep=keep, n_before=n_before)
    ends = sorted(set(joined.last.tolist()))
    with ExitStack() as stack:
        layers = list(model.layers) if attention else []
        weights = stack.enter_context(record_attention(model.hf, layers, ends))
        try:
            stack.enter_context(joined.hooks())
            stack.enter_context(fast_products())
            final = joined.last_of(run_base(model.hf, ids, cache=cache))
            states = model.final_norm.module(joined.end[:, ids.shape[1] :])  # [batch, copy, ...]
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
            return None  # a block that cannot be called so
    if cache is not None:  # without the copies
        shorten(cache, n_before + ids.shape[1])
    if not agree(states[:, 0].to(final.device), final, dtype=model.hf.dtype):
        return None
    row = torch.arange(len(ids))
    place = torch.tensor([ends.index(each) for each in joined.last.tolist()])
    captured = Captured(
        z={layer: z[:, None] for layer, z in joined.z.items()},
        final=final[:, None],
        residual={layer: out[:, None] for layer, out in joined.left.items()},
        final_residual=joined.last_of(joined.end)[:, None],
        attention={layer: each[row, :, place][:, :, None] for layer, each in weights.items()},
    )
    run = CopyRun(captured, states[:, 1:], joined.feed_forward, "joined")
    if not keep:
        return run
    return run._replace(ends=joined.end[:, ids.shape[1] + 1 :], copies=joined.copies)


def shorten(cache: DynamicCache, n_tokens: int) -> None:
    """Keep the keys and values of the first tokens alone.

    `DynamicCache.crop` is not used: it removes a number of tokens, which here differs by layer.
    """
    for layer in cache.layers:
        held: Any = layer
        if held.keys is not None and held.values is not None:
            held.keys, held.values = held.keys[:, :, :n_tokens], held.values[:, :, :n_tokens]


def uses_interface(model: Readable) -> bool:
    """Whether the attention of every layer goes through transformers' attention interface."""
    codes = {inspect.unwrap(type(at.attention).forward).__code__ for at in model.layers}
    return all("ALL_ATTENTION_FUNCTIONS" in code.co_names for code in codes)


class _JoinedPass:
    """The hooks of one pass in which copies join the prompt."""

    def __init__(
        self,
        model: Readable,
        ids: Tensor,
        lengths: Sequence[int],
        changes: Sequence[Change],
        *,
        keep: bool,
        n_before: int = 0,
    ) -> None:
        self.model, self.changes = model, changes
        self.n_tokens, self.n_before = ids.shape[1], n_before
        self.n_keys = n_before + self.n_tokens
        self.last = torch.tensor(lengths) - 1
        self.n_copies = 0
        self.end = torch.empty(0)
        """The output of the last block: the prompt, then the copies."""
        self.z: dict[int, Tensor] = {}
        self.copies: dict[int, Tensor] = {}
        self._keep = keep
        self.left: dict[int, Tensor] = {}
        self.feed_forward: dict[int, Tensor] = {}
        self._entered = torch.empty(0)
        self._wrote = torch.empty(0)
        self._first_row: dict[int, int] = {}

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Everything that has to be wrapped while the model runs."""
        blocks = all_blocks(self.model.hf, self.model.layers[0])
        by_block = {id(at.block): at for at in self.model.layers}
        with ExitStack() as stack:
            for number, block in enumerate(blocks):
                at = by_block.get(id(block))
                enter = partial(self._enter, at, joining=int(number == 0))
                leave = partial(self._leave, at, is_last=block is blocks[-1])
                stack.enter_context(block.register_forward_pre_hook(enter, with_kwargs=True))
                stack.enter_context(block.register_forward_hook(leave))
            for at in self.model.layers:
                project = partial(self._project, at)
                stack.enter_context(at.projection.register_forward_pre_hook(project))
                stack.enter_context(at.projection.register_forward_hook(self._projected))
            stack.enter_context(wrapped_attention(self.model, self._attend))
            yield

    def last_of(self, rows: Tensor) -> Tensor:
        """``[batch, pos, ...]`` at each prompt's last token."""
        return rows[torch.arange(len(self.last)), self.last.to(rows.device)]

    def _of(self, at: HeadLayer, kind: type) -> list[Change]:
        return [each for each in self.changes if each.layer == at.index and isinstance(each, kind)]

    def _enter(
        self,
        at: HeadLayer | None,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        joining: int,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The first copy joins before the first block, those of a layer's heads before theirs."""
        stream = args[0] if args else kwargs["hidden_states"]
        entered = self.last_of(stream)
        if at is not None:
            self._entered = entered
            self._first_row[at.index] = self.n_tokens + self.n_copies + joining
            joining += len(self._of(at, HeadsValue))
        stream = self._with_copies(stream, entered[:, None].expand(-1, joining, -1))
        names = list(inspect.signature(module.forward).parameters)  # some models give them by place
        more = [self._longer(n, v) for n, v in zip(names[1:], args[1:], strict=False)]
        named = {name: self._longer(name, value) for name, value in kwargs.items()}
        if args:
            return (stream, *more), named
        return (), {**named, "hidden_states": stream}

    def _leave(
        self, at: HeadLayer | None, _: nn.Module, __: tuple[Any, ...], output: Any, *, is_last: bool
    ) -> Any:
        """The copies of a layer's feed-forward part join after its block."""
        stream = output[0] if isinstance(output, tuple | list) else output
        if at is not None:
            here = self.left[at.index] = self.last_of(stream)
            if at.reaches_stream:
                wrote = self.last_of(self._wrote)
                own = besides_attention(at, self._entered, wrote, here)
                self.feed_forward[at.index] = own
                values = [each.value for each in self._of(at, FeedForwardValue)]
                if values:
                    new = torch.stack([(here - own + v.to(here)) for v in values], 1)
                    stream = self._with_copies(stream, new)
        if is_last:  # what follows in the base model sees the prompt alone
            self.end, stream = stream, stream[:, : self.n_tokens]
        return stream if isinstance(output, Tensor) else type(output)([stream, *output[1:]])

    def _with_copies(self, stream: Tensor, copies: Tensor) -> Tensor:
        self.n_copies += copies.shape[1]
        return torch.cat([stream, copies], 1) if copies.shape[1] else stream

    def _longer(self, name: str, value: Any) -> Any:
        """An argument of a block with the last token's part once more for each copy."""
        if isinstance(value, tuple):
            return tuple(self._longer(name, each) for each in value)
        if not isinstance(value, Tensor) or "mask" in name:
            return value
        if value.dim() in (2, 3) and value.shape[1] == self.n_tokens:  # positions, rotations
            rows = value.expand(len(self.last), *value.shape[1:])
            copies = self.last_of(rows)[:, None].expand(-1, self.n_copies, *rows.shape[2:])
            return torch.cat([rows, copies], 1)
        if value.dim() == 1 and value.shape[0] == self.n_tokens:
            return torch.cat([value, value[-1:].expand(self.n_copies)])
        return value

    def _project(
        self, at: HeadLayer, _: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Replace the activations of the copies that change this layer's heads."""
        flat = args[0]
        # Some models flatten batch and position before they project.
        z = flat.reshape(len(self.last), -1, at.n_heads, at.d_head)
        self.z[at.index] = self.last_of(z)
        changes = self._of(at, HeadsValue)
        if changes:
            rows, heads, values = _indexed(changes, len(self.last))
            z = z.clone()
            z[:, rows + self._first_row[at.index], heads] = values.to(z)
        if self._keep:  # copies that join later are still the last token itself
            later = len(self.changes) + 1 - self.n_copies
            rest = self.z[at.index][:, None].expand(-1, later, -1, -1)
            self.copies[at.index] = torch.cat([z[:, self.n_tokens + 1 :], rest], 1)
        return (z.reshape(flat.shape), *args[1:]) if changes else None

    def _projected(self, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        self._wrote = output.reshape(len(self.last), -1, output.shape[-1])

    def _attend(
        self,
        own: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """The model's own attention for the prompt; for each copy over the prefix and itself."""
        n = self.n_keys
        prompt = (query[:, :, : self.n_tokens], key[:, :, :n], value[:, :, :n])
        output, weights = own(module, *prompt, attention_mask, *args, **kwargs)
        if query.shape[2] == self.n_tokens:
            return output, weights
        if kwargs.get("position_bias") is not None:
            raise ValueError("a position bias is not known for the copies")
        scores, own_score = _scores(query[:, :, self.n_tokens :], key, n, kwargs)
        scores = scores + self._bias(attention_mask, kwargs.get("sliding_window"), scores)
        own_score = own_score[..., None]  # [batch, head, copy, 1]
        sinks = kwargs.get("s_aux")
        if sinks is not None:  # GPT-OSS: a learned score that takes weight and gives nothing
            sink = sinks.float().view(1, -1, 1, 1).expand_as(own_score)
            own_score = torch.cat([own_score, sink], -1)
        share = torch.cat([scores, own_score], -1).softmax(-1).to(value.dtype)
        read = _grouped(share[..., :n], value[:, :, :n])
        read = read + share[..., n, None] * _repeated(value[:, :, n:], query.shape[1])
        return torch.cat([output, read.transpose(1, 2).to(output)], 1), weights

    def _bias(self, mask: Any, window: int | None, like: Tensor) -> Tensor:
        """``[batch, 1 or head, 1, pos]``: what is added to the scores of the prefix."""
        at = torch.arange(self.n_keys, device=like.device)
        last = self.last.to(like.device)[:, None] + self.n_before
        hidden = at >= last  # the copy stands for the last token: what it sees itself is its own
        if window is not None:  # flash kernels get the window as a number; masks say the same
            hidden = hidden | (at <= last - window)
        bias = like.new_zeros(hidden.shape).masked_fill(hidden, NEGATIVE)[:, None, None]
        if isinstance(mask, Tensor) and mask.dim() == 4:
            rows = mask.expand(len(self.last), *mask.shape[1:])[..., : self.n_keys]
            row = rows[torch.arange(len(self.last)), :, self.last.to(mask.device)][:, :, None]
            is_bool = row.dtype == torch.bool
            row = like.new_zeros(row.shape).masked_fill(~row, NEGATIVE) if is_bool else row
            bias = bias + row.to(bias).clamp_min(NEGATIVE)
        return bias


def _scores(query: Tensor, key: Tensor, n: int, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Scores of the copies for the prefix ``[batch, head, copy, pos]``, and for themselves."""
    scale = given.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    to_prefix = _grouped(query, key[:, :, :n].transpose(-1, -2)).float() * scale
    to_self = (query * _repeated(key[:, :, n:], query.shape[1])).sum(-1).float() * scale
    cap = given.get("softcap")
    if cap is not None:
        return cap * torch.tanh(to_prefix / cap), cap * torch.tanh(to_self / cap)
    return to_prefix, to_self


def _grouped(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` where each head of ``right`` serves several of ``left``, none repeated."""
    batch, n_heads, rows, width = left.shape
    grouped = left.reshape(batch, right.shape[1], -1, width)  # [batch, key_head, group * rows, ...]
    return (grouped @ right).view(batch, n_heads, rows, -1)


def _repeated(keys: Tensor, n_heads: int) -> Tensor:
    return keys.repeat_interleave(n_heads // keys.shape[1], dim=1)


@contextmanager
def wrapped_attention(model: Readable, attend: Callable[..., Any]) -> Iterator[None]:
    """Replace the implementation that transformers' attention interface gives the model."""
    name = model.hf.config._attn_implementation or "eager"
    modules = {id(at.attention) for at in model.layers}
    registered = AttentionInterface()
    before = registered.get(name)

    def beside(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Eager is not registered: each family has its own, beside its attention.
        own = before or sys.modules[type(module).__module__].eager_attention_forward
        if id(module) not in modules:  # another model, in another thread
            return own(module, *args, **kwargs)
        return attend(own, module, *args, **kwargs)

    AttentionInterface.register(name, beside)
    try:
        yield
    finally:
        if before is None:
            AttentionInterface._global_mapping.pop(name)
        else:
            AttentionInterface.register(name, before)


def _indexed(changes: Sequence[Change], n_prompts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and heads ``[change]``, and the values ``[batch, change, d_head]`` they get."""
    rows = torch.tensor([row for row, change in enumerate(changes) for _ in _heads(change)])
    heads = torch.tensor([head for change in changes for head in _heads(change)])
    values = [
        change.value.expand(n_prompts, *change.value.shape[-2:]) for change in changes
    ]  # [batch, head, d_head]
    return rows, heads, torch.cat(values, 1)


def _heads(change: Change) -> tuple[int, ...]:
    return change.heads if isinstance(change, HeadsValue) else ()
