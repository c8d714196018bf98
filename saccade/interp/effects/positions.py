"""Exact effects of heads at any positions of a text on the predictions at later ones.

A change at an earlier position alters the keys and values of everything after it, so a whole row of
the prompt is run for each change. Up to the layer that it changes, such a row equals the plain run:
it joins the batch there, as a copy of the plain stream, so that on average half of the layers are
computed for it. Nothing is assumed about the family but that blocks get the stream first and that
other arguments have the batch in their first axis, or size 1 there. One more row changes nothing
and must end where the plain run does; where it does not, whole rows are run through all layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import Readable, agree, run_base, run_through
from saccade.interp.heads.onednn import fast_products
from saccade.interp.heads.taps import HeadLayer, all_blocks

if TYPE_CHECKING:
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.model import LanguageModel

# Tokens of all rows of a pass: bounds the memory, and more at once is no faster (default model).
MOST_TOKENS = 2048


class RowChange(NamedTuple):
    """Heads of one layer, and what replaces their activations in one row."""

    layer: int
    heads: tuple[int, ...]
    value: Float[Tensor, "*pos head d_head"]
    """The same at each of ``positions``, or one for each of them."""
    positions: tuple[int, ...] | None = None
    """None: all positions of the text."""


class Row(NamedTuple):
    """A changed copy of one prompt; the changes are made in their order."""

    changes: tuple[RowChange, ...]
    prompt: int = 0

    @property
    def first_layer(self) -> int:
        """Up to this layer the row equals its prompt."""
        return min(change.layer for change in self.changes)


class RowRun(NamedTuple):
    """The rows of a run, at the wanted positions."""

    plain: Float[Tensor, "batch pos d_model"]
    """The final normed states of the prompts; those up to ``until`` with it are empty."""
    states: Float[Tensor, "row pos d_model"]
    z: dict[int, Float[Tensor, "row pos head d_head"]]
    """By layer: the activations of the wanted layers, in each row."""
    method: Literal["joined", "whole"]


# More parameters than the house style has: each is one choice of what is run and kept.
@torch.no_grad()
def run_rows(
    model: Readable,
    ids: Int[Tensor, "batch pos"],
    rows: Sequence[Row],
    *,
    at: Sequence[int],
    keep: Sequence[int] = (),
    until: int | None = None,
    method: Literal["joined", "whole"] = "joined",
) -> RowRun:
    """Run changed copies of prompts of the same number of tokens (padded to the right, or none).

    Args:
        at: the positions whose states, and activations, to keep.
        keep: layers whose activations to keep.
        until: the last layer to compute; there are no states then.
        method: "whole" runs every row through all layers.
    """
    positions = [position_in(p, ids.shape[1]) for p in at]
    for change in (change for row in rows for change in row.changes):
        for position in change.positions or ():
            position_in(position, ids.shape[1])
    order = sorted(range(len(rows)), key=lambda i: rows[i].first_layer)
    n_rows = max(1, MOST_TOKENS // ids.shape[1] - len(ids) - 1)
    parts = [order[i : i + n_rows] for i in range(0, max(1, len(order)), n_rows)]
    if method == "joined":
        passes = []
        for number, part in enumerate(parts):
            one = _RowPass(model, ids, [rows[i] for i in part], positions, keep, until)
            found = one.joined(is_checked=number == 0)
            if found is None:
                return run_rows(model, ids, rows, at=at, keep=keep, until=until, method="whole")
            passes.append(found)
    else:
        passes = [
            _RowPass(model, ids, [rows[i] for i in part], positions, keep, until).whole()
            for part in parts
        ]
    back = torch.tensor(order, dtype=torch.long).argsort()
    return RowRun(
        passes[0].plain,
        torch.cat([each.states for each in passes])[back.to(passes[0].states.device)],
        {i: torch.cat([p.z[i] for p in passes])[back.to(passes[0].z[i].device)] for i in keep},
        method,
    )


def position_in(position: int, n_tokens: int) -> int:
    """A position counted from the start; negative ones count from the end."""
    if not -n_tokens <= position < n_tokens:
        raise UsageError(
            f"no position {position}: the text has {n_tokens} tokens",
            hint=f"give 0 to {n_tokens - 1}, or -1 for the last",
        )
    return position % n_tokens


class _RowPass:
    """One pass: the prompts, an unchanged copy of the first one, and changed rows."""

    # As many parameters as a run has choices.
    def __init__(
        self,
        model: Readable,
        ids: Tensor,
        rows: Sequence[Row],
        positions: list[int],
        keep: Sequence[int],
        until: int | None,
    ) -> None:
        self.model, self.ids, self.rows = model, ids, rows
        self.positions, self.keep, self.until = positions, keep, until
        self.n_prompts = len(ids)
        self.prompts = list(range(len(ids)))
        """The prompt of each row that has joined, in the order of the batch."""
        self.z: dict[int, Tensor] = {}
        self.end = torch.empty(0)
        """The stream after the last block, at the wanted positions of the rows that joined."""

    def joined(self, *, is_checked: bool) -> RowRun | None:
        """Every row joins at its layer; None where an unchanged row ends elsewhere."""
        blocks = all_blocks(self.model.hf, self.model.layers[0])
        by_block = {id(at.block): at for at in self.model.layers}
        n_checked = int(is_checked)
        with ExitStack() as stack:
            for number, block in enumerate(blocks):
                here = by_block.get(id(block))
                enter = partial(self._enter, here, n_checked=n_checked * (number == 0))
                stack.enter_context(block.register_forward_pre_hook(enter, with_kwargs=True))
            stack.enter_context(blocks[-1].register_forward_hook(self._leave))
            stack.enter_context(self._changed_heads(self.n_prompts + n_checked))
            try:
                plain = self._run(self.ids)
                ends = (
                    self.end if self.until is not None else self.model.final_norm.module(self.end)
                )
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
                return None  # a block that cannot be called so
        if is_checked and not self._is_unchanged(plain, ends):
            return None
        return self._found(plain, ends[n_checked:], "joined", self.n_prompts + n_checked)

    def _is_unchanged(self, plain: Tensor, ends: Tensor) -> bool:
        """Whether the unchanged row is what its prompt is."""
        pairs = [(z[self.n_prompts], z[0]) for z in self.z.values()]
        if self.until is None:
            pairs.append((ends[0], plain[0]))
        return all(agree(a.to(b.device), b, dtype=self.model.hf.dtype) for a, b in pairs)

    def whole(self) -> RowRun:
        """Every row runs through all layers."""
        self.prompts += [row.prompt for row in self.rows]
        with self._changed_heads(self.n_prompts):
            final = self._run(self.ids[self.prompts])
        return self._found(
            final[: self.n_prompts], final[self.n_prompts :], "whole", self.n_prompts
        )

    def _run(self, ids: Tensor) -> Float[Tensor, "row pos d_model"]:
        """The final states at the wanted positions; none where the run ends early."""
        with fast_products():
            if self.until is None:
                return run_base(self.model.hf, ids)[:, self.positions]
            run_through(self.model.hf, ids, self.model.layer(self.until).block)
        return self.end.new_empty(len(ids), 0, 0)

    def _leave(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        """After the last block: what follows in the base model sees the prompts alone."""
        stream = output[0] if isinstance(output, tuple | list) else output
        self.end = stream[self.n_prompts :, self.positions]
        stream = stream[: self.n_prompts]
        return stream if isinstance(output, Tensor) else type(output)([stream, *output[1:]])

    def _found(
        self, plain: Tensor, states: Tensor, method: Literal["joined", "whole"], first: int
    ) -> RowRun:
        z = {}
        for layer, each in self.z.items():
            # Rows that join later equal their prompt here.
            late = [row.prompt for row in self.rows[len(each) - first :]]
            z[layer] = torch.cat([each[first:], each[late]])
        if self.until is not None:
            states = plain.new_empty(len(self.rows), 0, 0)
        return RowRun(plain, states, z, method)

    def _enter(
        self,
        at: HeadLayer | None,
        _: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        n_checked: int,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Rows join before the block of their first layer; the unchanged one before the first."""
        stream = args[0] if args else kwargs["hidden_states"]
        new = [0] * n_checked
        if at is not None:
            new += [row.prompt for row in self.rows if row.first_layer == at.index]
        self.prompts += new
        if new:
            stream = torch.cat([stream, stream[new]])
        named = {name: self._longer(value) for name, value in kwargs.items()}
        if args:
            return (stream, *map(self._longer, args[1:])), named
        return (), {**named, "hidden_states": stream}

    def _longer(self, value: Any) -> Any:
        """An argument of a block with a row for each row of the batch."""
        if isinstance(value, tuple):
            return tuple(self._longer(each) for each in value)
        if isinstance(value, dict):
            return {name: self._longer(each) for name, each in value.items()}
        if not isinstance(value, Tensor) or value.dim() < 2 or len(value) != self.n_prompts:
            return value
        if len(value) == 1:
            return value.expand(len(self.prompts), *value.shape[1:])
        return value[self.prompts]

    @contextmanager
    def _changed_heads(self, first: int) -> Iterator[None]:
        changes: dict[int, list[tuple[int, RowChange]]] = {i: [] for i in self.keep}
        for number, row in enumerate(self.rows):
            for change in row.changes:
                changes.setdefault(change.layer, []).append((first + number, change))
        with ExitStack() as stack:
            for layer, here in changes.items():
                at = self.model.layer(layer)
                hook = partial(self._project, at, here)
                stack.enter_context(at.projection.register_forward_pre_hook(hook))
            yield

    def _project(
        self,
        at: HeadLayer,
        changes: Sequence[tuple[int, RowChange]],
        _: nn.Module,
        args: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        """Replace the activations of the rows that change this layer's heads."""
        flat = args[0]
        # Some models flatten batch and position before they project.
        z = flat.reshape(len(self.prompts), -1, at.n_heads, at.d_head).clone()
        for row, change in changes:
            every = range(z.shape[1]) if change.positions is None else change.positions
            places = torch.tensor([p % z.shape[1] for p in every], device=z.device)
            heads = torch.tensor(change.heads, device=z.device)
            z[row, places[:, None], heads] = change.value.to(z)
        if at.index in self.keep:
            self.z[at.index] = z[:, self.positions]
        return (z.reshape(flat.shape), *args[1:])


# Effects of heads at chosen positions.


class HeadAt(NamedTuple):
    """A head, and the positions at which it is replaced; None is all of them."""

    layer: int
    head: int
    positions: tuple[int, ...] | None = None

    def replaced(self, replacement: Replacement, *, prompt: int = 0) -> Row:
        """The row in which the head is replaced."""
        value = replacement.heads[self.layer][..., self.head : self.head + 1, :]
        if value.dim() == 3 and self.positions is not None:  # one for each position of the text
            value = value[list(self.positions)]
        return Row((RowChange(self.layer, (self.head,), value, self.positions),), prompt)


class PositionEffect(NamedTuple):
    """The effect of a head at some positions on the prediction at a later one."""

    kl: float
    """KL(with || without), in nats."""
    on_token: float
    """How far the score of the target falls when the head is replaced."""


@torch.no_grad()
def position_effects(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    heads: Sequence[HeadAt],
    *,
    replacement: Replacement,
    target: Target | None = None,
    at: int = -1,
) -> dict[HeadAt, PositionEffect]:
    """Measure what heads at chosen positions do to the prediction at position ``at``.

    Args:
        target: the score of ``PositionEffect.on_token``; by default the likeliest token.
    """
    rows = [each.replaced(replacement) for each in heads]
    run = run_rows(model, ids, rows, at=[at])
    found = state_effects(model, run.plain[0, 0], run.states[:, 0], target)
    return dict(zip(heads, found, strict=True))


def precise(logits: Tensor) -> Tensor:
    """Logits in at least float32."""
    return logits if logits.dtype == torch.float64 else logits.float()


LOGIT_ROWS = 96  # logits in memory at once


@torch.no_grad()
def state_effects(
    model: LanguageModel,
    plain: Float[Tensor, " d_model"],
    states: Float[Tensor, "row d_model"],
    target: Target | None,
) -> list[PositionEffect]:
    """The effects of changes that end in ``states`` where the plain run ends in ``plain``."""
    with fast_products():
        logits = precise(model.unembedding.logits(plain))
        target = Target(int(logits.argmax())) if target is None else target
        score, p = target.score(logits), logits.softmax(-1)
        found = []
        for some in states.split(LOGIT_ROWS):
            changed = precise(model.unembedding.logits(some))
            fallen = (score - target.score(changed)).tolist()
            moved = changed.sub_(logits)
            # log of the sum of p exp(moved): written so, a small change keeps its digits.
            kl = (torch.log1p(moved.expm1() @ p) - moved @ p).clamp_min(0.0).tolist()
            found += map(PositionEffect, kl, fallen)
    return found
