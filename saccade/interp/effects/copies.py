"""Run many changed copies of a text's last token.

A change at the last token alters nothing before it: the keys and values of the prefix are those of
the plain run. So the prompt runs once, and copies of its last token join it in the same pass
(`saccade.interp.effects.joined_pass`; sharing a prefix so is known from speculative tree decoding,
Miao et al., 2023, https://arxiv.org/abs/2305.09781). The first copy changes nothing and must end
where the plain run ends. Where it does not (families that do not use transformers' attention
interface, position biases that depend on the key, layers that mix positions in other ways), the
copies stand in the batch instead, each a row with the prefix's keys and values before it, as in
generation; where that fails too, the whole prompt is run for every copy. All three give the same
states; `CopyRun.method` tells which it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import DynamicCache

from saccade.errors import ModelError
from saccade.interp.effects.joined_pass import CopyRun, Method, run_joined, shorten, uses_interface
from saccade.interp.effects.parts import Change, FeedForwardValue, HeadsValue, recorded_streams
from saccade.interp.heads.capture import (
    Captured,
    Readable,
    agree,
    capture,
    keep_in,
    on_input,
    run_base,
)
from saccade.interp.heads.taps import HeadLayer

MOST_COPIES = 512  # in one pass, which bounds the memory of models with thousands of heads
ROWS_AT_ONCE = 16  # of the two slower methods, which need the prefix in each row


@torch.no_grad()
def run_copies(
    model: Readable,
    ids: Int[Tensor, "batch pos"],
    changes: Sequence[Change],
    *,
    lengths: Sequence[int] | None = None,
    attention: bool = False,
    keep: bool = False,
    method: Method = "joined",
    cache: DynamicCache | None = None,
) -> CopyRun:
    """Run prompts, and a copy of each last token for every change.

    Args:
        lengths: how many tokens of each row are the prompt; the rest is padding. Padding to the
            right needs no mask, since no token attends to what comes after it.
        attention: also record where the last token attends.
        keep: also keep the activations of the copies, in ``ends`` and ``copies``.
        method: the first method to try.
        cache: keys and values of the first tokens of all prompts, or empty: these tokens are not
            run again, and those of the others are appended. Of use to the joined pass only.

    Raises:
        ModelError: ``attention`` is wanted and the model's kernel hides its weights.
    """
    lengths = [ids.shape[1]] * len(ids) if lengths is None else list(lengths)
    _refuse_without_stream(model, changes)
    parts = _chunks(changes)
    if method == "joined" and uses_interface(model):
        n_before = 0 if cache is None else cache.get_seq_length()
        rest, ends = ids[:, n_before:], [length - n_before for length in lengths]
        found: list[CopyRun | None] = []
        for part in parts:
            if cache is not None:
                shorten(cache, n_before)  # the part before has appended the same
            part_changes = [each for _, each in part]
            found.append(
                run_joined(
                    model, rest, ends, part_changes, attention=attention, keep=keep, cache=cache
                )
            )
        runs = [run for run in found if run is not None]
        if len(runs) == len(parts):
            order = torch.tensor([i for part in parts for i, _ in part], dtype=torch.long)
            return _in_order(runs, order.argsort())
    rows = [
        _row_by_row(
            model, ids[i : i + 1, :n], _of_row(changes, i), method, attention=attention, keep=keep
        )
        for i, n in enumerate(lengths)
    ]
    return _stacked(rows)


def _in_order(runs: Sequence[CopyRun], order: Int[Tensor, " copy"]) -> CopyRun:
    """Several passes over the same prompts as one run, with the copies in a given order."""
    states = torch.cat([run.states for run in runs], 1)[:, order]
    ends = [run.ends for run in runs if run.ends is not None]
    copies = [run.copies for run in runs if run.copies is not None]
    return runs[0]._replace(
        states=states,
        ends=torch.cat(ends, 1)[:, order] if ends else None,
        copies={k: torch.cat([each[k] for each in copies], 1)[:, order] for k in copies[0]}
        if copies
        else None,
    )


def _refuse_without_stream(model: Readable, changes: Sequence[Change]) -> None:
    for change in changes:
        if isinstance(change, FeedForwardValue) and not model.layer(change.layer).reaches_stream:
            raise ModelError(
                f"the block of layer {change.layer} norms the stream itself: what its feed-forward "
                "part adds cannot be told from its attention",
                hint="measure its heads only",
            )


def _chunks(changes: Sequence[Change]) -> list[list[tuple[int, Change]]]:
    """The changes in the order of their layers, each with its place, at most so many at once."""
    # In a block, copies with changed heads join before those with a changed feed-forward part.
    order = sorted(
        enumerate(changes), key=lambda each: (each[1].layer, isinstance(each[1], FeedForwardValue))
    )
    return [order[at : at + MOST_COPIES] for at in range(0, max(len(order), 1), MOST_COPIES)]


def _of_row(changes: Sequence[Change], row: int) -> list[Change]:
    plain = [2 if isinstance(change, HeadsValue) else 1 for change in changes]
    return [
        change if change.value.dim() == dim else change._replace(value=change.value[row])
        for change, dim in zip(changes, plain, strict=True)
    ]


# The slower methods: copies in the batch, behind the prefix's cache or with the whole prompt.


def _row_by_row(
    model: Readable,
    ids: Tensor,
    changes: Sequence[Change],
    method: Method,
    *,
    attention: bool,
    keep: bool,
) -> CopyRun:
    """One prompt, with the fastest method whose unchanged copy ends where the plain run does."""
    cache = DynamicCache()
    plain = _plain_run(model, ids, cache, attention=attention)
    expected = plain.captured.final[0]
    for slower in ("batch", "whole")[method == "whole" :]:
        try:
            prefix = _prefix(cache) if slower == "batch" else None
            rows = _in_rows(model, ids, plain, prefix, [None, *changes])
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            if slower == "whole":
                raise
            continue  # a model whose cache is of another kind
        if slower == "whole" or agree(rows.states[:1], expected, dtype=model.hf.dtype):
            found = plain._replace(states=rows.states[None, 1:], method=slower)
            copies = {layer: z[None, 1:] for layer, z in rows.z.items()}
            return found._replace(ends=rows.ends[None, 1:], copies=copies) if keep else found
    raise AssertionError("the whole prompt can always be run")


def _plain_run(model: Readable, ids: Tensor, cache: DynamicCache, *, attention: bool) -> CopyRun:
    """The prompt without changes, at its last token; fills the cache."""
    layers = [at.index for at in model.layers]
    with recorded_streams(model) as streams:
        run = capture(
            model,
            ids,
            positions=torch.tensor([[ids.shape[1] - 1]]),
            residual=True,
            attention=layers if attention else (),
            attention_positions=[ids.shape[1] - 1],
            cache=cache,
        )
    assert run.final_residual is not None, "captured with the residual stream"
    own = {at.index: streams.feed_forward(at)[:, -1] for at in model.layers if at.reaches_stream}
    left = {layer: stream[:, -1:] for layer, stream in run.residual.items()}
    captured = run._replace(residual=left, final_residual=run.final_residual[:, -1:])
    return CopyRun(captured, run.final[:, :0], own, "whole")


def _prefix(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of all tokens but the last, by layer."""
    found = []
    for layer in cache.layers:
        held: Any = layer
        if held.keys is None or held.values is None:
            raise ValueError("a layer without keys and values")
        found.append((held.keys[:, :, :-1], held.values[:, :, :-1]))
    return found


class _Rows(NamedTuple):
    """Copies that were run in the batch, each at its last position."""

    states: Float[Tensor, "copy d_model"]
    ends: Float[Tensor, "copy d_model"]
    """The input of the final norm."""
    z: dict[int, Float[Tensor, "copy head d_head"]]


def _in_rows(
    model: Readable,
    ids: Tensor,
    plain: CopyRun,
    prefix: list[tuple[Tensor, Tensor]] | None,
    changes: Sequence[Change | None],
) -> _Rows:
    """Every copy, a batch of rows at a time."""
    starts = range(0, len(changes), ROWS_AT_ONCE)
    found = []
    for some in (changes[start : start + ROWS_AT_ONCE] for start in starts):
        last: dict[str, Tensor] = {}
        flat: dict[int, Tensor] = {}
        with ExitStack() as stack:
            for at in model.layers:
                replace = partial(_replace_heads, at, some)
                stack.enter_context(at.projection.register_forward_pre_hook(replace))
                stack.enter_context(on_input(at.projection, keep_in(flat, at.index)))
                more = partial(_replace_feed_forward, at, some, plain.feed_forward.get(at.index))
                stack.enter_context(at.block.register_forward_hook(more))
            stack.enter_context(on_input(model.final_norm.module, keep_in(last, "end")))
            final = _run_rows(model, ids, prefix, len(some))
        z = {
            at.index: flat[at.index].reshape(len(some), -1, at.n_heads, at.d_head)[:, -1]
            for at in model.layers
        }
        found.append(_Rows(final, last["end"][:, -1] if last else final, z))
    return _Rows(
        torch.cat([rows.states for rows in found]),
        torch.cat([rows.ends for rows in found]),
        _joined_rows([rows.z for rows in found]),
    )


def _run_rows(
    model: Readable, ids: Tensor, prefix: list[tuple[Tensor, Tensor]] | None, n_rows: int
) -> Float[Tensor, "copy d_model"]:
    """The final state at the last token, once for each row."""
    if prefix is None:
        return run_base(model.hf, ids.expand(n_rows, -1))[:, -1]
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(prefix):
        rows = (n_rows, *keys.shape[1:])
        cache.update(keys.expand(rows), values.expand(*rows[:-1], values.shape[-1]), layer)
    return run_base(model.hf, ids[:, -1:].expand(n_rows, -1), cache=cache)[:, -1]


def _replace_heads(
    at: HeadLayer, changes: Sequence[Change | None], _: nn.Module, args: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    here = [
        (row, change)
        for row, change in enumerate(changes)
        if isinstance(change, HeadsValue) and change.layer == at.index
    ]
    if not here:
        return None
    flat = args[0]
    z = flat.reshape(len(changes), -1, at.n_heads, at.d_head).clone()  # [row, pos, head, d_head]
    for row, change in here:
        z[row, -1, list(change.heads)] = change.value.to(z)
    return (z.reshape(flat.shape), *args[1:])


def _replace_feed_forward(
    at: HeadLayer,
    changes: Sequence[Change | None],
    own: Tensor | None,
    _: nn.Module,
    __: tuple[Any, ...],
    output: Any,
) -> Any:
    here = [
        (row, change)
        for row, change in enumerate(changes)
        if isinstance(change, FeedForwardValue) and change.layer == at.index
    ]
    if not here or own is None:
        return None
    stream = (output[0] if isinstance(output, tuple | list) else output).clone()
    for row, change in here:
        stream[row, -1] += (change.value.to(own) - own[0]).to(stream)
    return stream if isinstance(output, Tensor) else type(output)([stream, *output[1:]])


def _stacked(rows: Sequence[CopyRun]) -> CopyRun:
    """Prompts that were run one by one, as one batch. Attention weights are padded."""
    first = rows[0]
    longest = max((w.shape[-1] for r in rows for w in r.captured.attention.values()), default=0)
    ends = [row.captured.final_residual for row in rows]
    captured = Captured(
        z=_joined_rows([row.captured.z for row in rows]),
        final=torch.cat([row.captured.final for row in rows]),
        residual=_joined_rows([row.captured.residual for row in rows]),
        final_residual=torch.cat([end for end in ends if end is not None]),
        attention=_joined_rows(
            [
                {k: pad(w, (0, longest - w.shape[-1])) for k, w in row.captured.attention.items()}
                for row in rows
            ]
        ),
    )
    ends_of_copies = [row.ends for row in rows if row.ends is not None]
    copies = [row.copies for row in rows if row.copies is not None]
    return CopyRun(
        captured,
        torch.cat([row.states for row in rows]),
        _joined_rows([row.feed_forward for row in rows]),
        "whole" if any(row.method == "whole" for row in rows) else first.method,
        torch.cat(ends_of_copies) if ends_of_copies else None,
        _joined_rows(copies) if copies else None,
    )


def _joined_rows(parts: Sequence[dict[int, Tensor]]) -> dict[int, Tensor]:
    return {layer: torch.cat([part[layer] for part in parts]) for layer in parts[0]}
