"""The interventions on a running model, each at one head or at the stream after one layer.

``positions`` are those of the whole text, None for all; negative ones count from the end of the
text's real tokens (while generating: of the prompt). ``rows`` are texts of the batch, None for all.
A value is one vector for all tokens, ``[pos, d]`` with one for each of ``positions``
(for the text's first tokens, without positions), or ``[batch, pos, d]`` with those of each row.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache

from saccade.errors import InterventionError

# The position, in its whole text, of each token of a running pass.

PADDING = -(2**31)  # the place of padding: no position, counted from either end, has this value


class Chosen(NamedTuple):
    """The tokens of a pass that a change applies to."""

    tokens: Bool[Tensor, "batch pos"]
    slot: Int[Tensor, "batch pos"]
    """Which of the requested positions each of them is; 0 where none is."""
    reached: Bool[Tensor, " slot"]
    """Which of the requested positions are in this pass."""


class RunningPass(NamedTuple):
    """The tokens of one forward pass, by their positions in the whole text."""

    place: Int[Tensor, "batch pos"]
    """Counted over real tokens from the start of the text; `PADDING` where there is none."""
    end: Int[Tensor, " batch"]
    """Number of real tokens of each text; negative positions count from here."""

    def choose(self, positions: Sequence[int] | None, rows: Sequence[int] | None) -> Chosen:
        """The tokens at ``positions`` (all: None) of the texts ``rows`` (all: None)."""
        of_row = torch.ones_like(self.end, dtype=torch.bool)
        if rows is not None:
            wanted = torch.as_tensor(rows, device=self.end.device)
            of_row = (torch.arange(len(self.end), device=wanted.device)[:, None] == wanted).any(1)
        real = (self.place != PADDING) & of_row[:, None]
        if positions is None:
            return Chosen(real, torch.zeros_like(self.place), real.new_ones(0))
        asked = torch.as_tensor(positions, device=self.end.device)
        asked = torch.where(asked < 0, self.end[:, None] + asked, asked)  # [batch, slot]
        # A negative position before the start of a short text matches nothing, not padding either.
        hits = (self.place[:, :, None] == asked[:, None]) & real[..., None]  # [batch, pos, slot]
        return Chosen(hits.any(-1), hits.int().argmax(-1), hits.flatten(0, 1).any(0))


class PassWatcher:
    """Tracks the text positions of each pass.

    Negative positions count from the end of the text that a cache started with, so that they
    refer to the same tokens while new ones are generated.
    """

    def __init__(self) -> None:
        self.running: RunningPass | None = None
        self._ends: WeakKeyDictionary[Cache, Tensor] = WeakKeyDictionary()

    def enter(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pre-hook of the module that runs the blocks."""
        given = inspect.signature(base.forward).bind_partial(*args, **kwargs).arguments
        given = {**given.pop("kwargs", {}), **given}
        tokens = given.get("input_ids")
        tokens = given["inputs_embeds"] if tokens is None else tokens
        batch, n_new = tokens.shape[:2]
        cache = given.get("past_key_values")
        n_past = int(cache.get_seq_length()) if isinstance(cache, Cache) else 0
        real = _real_tokens(given.get("attention_mask"), batch, n_past + n_new).to(tokens.device)
        place = (real.cumsum(1) - 1).masked_fill(~real, PADDING)[:, n_past:]
        end = real.sum(1)
        if isinstance(cache, Cache):
            end = self._ends.setdefault(cache, end)
        self.running = RunningPass(place, end)

    def leave(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        """A forward hook of the module that runs the blocks, called after an error too."""
        cache = getattr(output, "past_key_values", None)
        if isinstance(cache, Cache) and self.running is not None:
            self._ends.setdefault(cache, self.running.end)
        self.running = None


def _real_tokens(mask: Any, batch: int, length: int) -> Bool[Tensor, "batch key_pos"]:
    if mask is None:
        return torch.ones(batch, length, dtype=torch.bool)
    if not isinstance(mask, Tensor) or tuple(mask.shape) != (batch, length):
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise InterventionError(
            f"cannot tell where the texts start: expected a mask of {batch} texts x {length} "
            f"tokens, got {got}",
            hint="give a mask of [batch, key_pos] that covers the cached tokens too",
        )
    return mask.bool()


Positions: TypeAlias = Sequence[int] | None


class HeadOutput(NamedTuple):
    """One head in a pass: its output is ``W_O z + added``."""

    z: Float[Tensor, "batch pos d_head"]
    added: Float[Tensor, "batch pos d_model"] | None = None


@final
@dataclass(frozen=True, eq=False)
class Ablate:
    """Replace the activation of a head: by zero, its mean over a text, or that of another prompt.

    "mean" and "resample" replace it by ``value``: see `saccade.interp.heads.intervene.mean_z`, and
    `Captured.z` of other prompts.
    """

    layer: int
    head: int
    by: Literal["zero", "mean", "resample"] = "zero"
    value: Float[Tensor, "*more d_head"] | None = None
    positions: Positions = None
    rows: Positions = None

    def check(self, *, d_head: int, d_model: int) -> None:  # noqa: ARG002
        """Raise an `InterventionError` unless the change can be made."""
        if self.by not in ("zero", "mean", "resample"):
            raise InterventionError(
                f"cannot ablate by {self.by!r}", hint='give "zero", "mean" or "resample"'
            )
        if (self.by == "zero") != (self.value is None):
            got = "none" if self.value is None else "one"
            raise InterventionError(
                f"ablation by {self.by} takes {'no' if got == 'one' else 'a'} value, got {got}",
                hint="give the mean over a text (mean_z) or z of other prompts with `value`",
            )
        if self.value is not None:
            _check_value(self.value, {"d_head": d_head}, self.positions)

    def at_head(self, output: HeadOutput, chosen: Chosen) -> HeadOutput:
        """The head with the change applied."""
        value = self.value if self.value is not None else output.z.new_zeros(output.z.shape[-1])
        return _replaced(output, value, chosen, self.rows)


@final
@dataclass(frozen=True, eq=False)
class Scale:
    """Multiply the output of a head by a factor."""

    layer: int
    head: int
    factor: float
    positions: Positions = None
    rows: Positions = None

    def check(self, *, d_head: int, d_model: int) -> None:  # noqa: ARG002
        """Raise an `InterventionError` unless the change can be made."""
        _check_number("factor", self.factor)
        if self.factor == 1:
            raise InterventionError("a factor of 1 changes nothing", hint="give another factor")

    def at_head(self, output: HeadOutput, chosen: Chosen) -> HeadOutput:
        """The head with the change applied."""
        z, added = output
        if added is not None:
            added = _where(chosen, added * self.factor, added)
        return HeadOutput(_where(chosen, z * self.factor, z), added)


@final
@dataclass(frozen=True, eq=False)
class Patch:
    """Replace the activation of a head by its activation in another text (`Captured.z`)."""

    layer: int
    head: int
    z: Float[Tensor, "*more d_head"]
    positions: Positions = None
    rows: Positions = None

    def check(self, *, d_head: int, d_model: int) -> None:  # noqa: ARG002
        """Raise an `InterventionError` unless the change can be made."""
        _check_value(self.z, {"d_head": d_head}, self.positions)

    def at_head(self, output: HeadOutput, chosen: Chosen) -> HeadOutput:
        """The head with the change applied."""
        return _replaced(output, self.z, chosen, self.rows)


@final
@dataclass(frozen=True, eq=False)
class InjectHead:
    """Add ``strength * vector`` to a head's output (d_model) or activation (d_head)."""

    layer: int
    head: int
    vector: Float[Tensor, "*more d"]
    strength: float = 1.0
    positions: Positions = None
    rows: Positions = None

    def check(self, *, d_head: int, d_model: int) -> None:
        """Raise an `InterventionError` unless the change can be made."""
        _check_value(self.vector, {"d_model": d_model, "d_head": d_head}, self.positions)
        _check_strength(self.strength)

    def at_head(self, output: HeadOutput, chosen: Chosen) -> HeadOutput:
        """The head with the change applied."""
        z, added = output
        width = self.vector.shape[-1]
        if width == z.shape[-1]:
            return HeadOutput(_with_more(z, self.vector, self.strength, chosen, self.rows), added)
        added = z.new_zeros(*z.shape[:2], width) if added is None else added
        return HeadOutput(z, _with_more(added, self.vector, self.strength, chosen, self.rows))


@final
@dataclass(frozen=True, eq=False)
class InjectResidual:
    """Add ``strength * vector`` to the residual stream after a layer's block."""

    layer: int
    vector: Float[Tensor, "*more d_model"]
    strength: float = 1.0
    positions: Positions = None
    rows: Positions = None

    def check(self, *, d_head: int, d_model: int) -> None:  # noqa: ARG002
        """Raise an `InterventionError` unless the change can be made."""
        _check_value(self.vector, {"d_model": d_model}, self.positions)
        _check_strength(self.strength)

    def at_stream(
        self, stream: Float[Tensor, "batch pos d_model"], chosen: Chosen
    ) -> Float[Tensor, "batch pos d_model"]:
        """The stream with the change applied."""
        return _with_more(stream, self.vector, self.strength, chosen, self.rows)


HeadChange: TypeAlias = Ablate | Scale | Patch | InjectHead
Change: TypeAlias = HeadChange | InjectResidual


def positions_of(change: Change) -> Positions:
    """The requested positions; the first ones of the text if only a value for each was given."""
    if change.positions is not None:
        return change.positions
    match change:
        case Ablate(value=Tensor() as value) | Patch(z=value):
            put = value
        case InjectHead(vector=value) | InjectResidual(vector=value):
            put = value
        case _:
            return None
    return range(put.shape[-2]) if put.dim() > 1 else None


def _replaced(output: HeadOutput, value: Tensor, chosen: Chosen, rows: Positions) -> HeadOutput:
    z, added = output
    if added is not None:
        added = _where(chosen, torch.zeros_like(added), added)
    return HeadOutput(_where(chosen, _spread(value, z, chosen, rows), z), added)


def _with_more(
    part: Tensor, vector: Tensor, strength: float, chosen: Chosen, rows: Positions
) -> Tensor:
    return _where(chosen, part + strength * _spread(vector, part, chosen, rows), part)


def _where(chosen: Chosen, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(chosen.tokens.to(old.device)[..., None], new, old)


def _spread(value: Tensor, like: Tensor, chosen: Chosen, rows: Positions) -> Tensor:
    """One vector for each token of the pass, to be used where it is chosen."""
    value = value.to(like)
    if value.dim() == 1:
        return value
    slot = chosen.slot.to(like.device)
    if value.dim() == 2:
        return value[slot]
    n_texts = len(like) if rows is None else len(rows)
    if len(value) != n_texts:
        raise InterventionError(
            f"a value for each text: expected {n_texts}, got {len(value)}",
            hint="give [batch, pos, d], or [pos, d] for all texts alike",
        )
    which = torch.zeros(len(like), dtype=torch.long)
    for index, row in enumerate(range(n_texts) if rows is None else rows):
        which[row] = index
    return value[which.to(like.device)[:, None], slot]


def _check_value(value: Tensor, allowed: dict[str, int], positions: Positions) -> None:
    if not 1 <= value.dim() <= 3 or value.shape[-1] not in allowed.values():
        wanted = " or ".join(f"{name} = {size}" for name, size in allowed.items())
        raise InterventionError(
            f"expected a vector of {wanted}, got a shape of {tuple(value.shape)}",
            hint="give one vector, [pos, d] with one for each position, or [batch, pos, d]",
        )
    if positions is not None and value.dim() > 1 and value.shape[-2] != len(positions):
        raise InterventionError(
            f"expected a vector for each of {len(positions)} positions, got {value.shape[-2]}",
            hint="give one vector for all of them, or as many as there are positions",
        )
    if not bool(value.isfinite().all()):
        raise InterventionError(
            "a vector to put into the model has values that are not finite (nan or inf)",
            hint="find out where they come from: a division by zero, or an overflow",
        )


def _check_number(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise InterventionError(f"the {name} is not finite: {value}", hint="give a finite number")


def _check_strength(strength: float) -> None:
    _check_number("strength", strength)
    if strength == 0:
        raise InterventionError("a strength of 0 changes nothing", hint="give another strength")
