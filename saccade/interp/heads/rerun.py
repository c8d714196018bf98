"""Rerun a model from one layer on, with changed activations of the heads of that layer."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from saccade.interp.heads.capture import Readable, agree, capture, run_base
from saccade.interp.heads.taps import FinalNorm, HeadLayer, all_blocks


class _Call(NamedTuple):
    """How a block was called; the residual stream, its first argument, is left out."""

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def again(self, stream: Tensor) -> Tensor:
        found = self.block(stream, *self.args, **self.kwargs)
        return found[0] if isinstance(found, tuple | list) else found


@dataclass(frozen=True)
class Rerun:
    """The rest of a model from one layer on, to be rerun with other activations of its heads.

    Changing one head needs only the layers after it. Each block is called again as in the recorded
    run, with the changed stream; nothing depends on the model family. Where that does not
    reproduce the recorded final state (a family with more computation between its blocks), the
    whole model is run instead: same results, slower.
    """

    at: HeadLayer
    ids: Int[Tensor, "batch pos"]
    z: Float[Tensor, "batch pos head d_head"]
    """The activations of the layer's heads in the recorded run."""
    final: Float[Tensor, "batch pos d_model"]
    """The final normed state of the recorded run."""
    final_residual: Float[Tensor, "batch pos d_model"]
    """The input of the final norm."""
    is_short: bool
    """Whether only the later layers are run."""
    _hf: PreTrainedModel
    _norm: FinalNorm
    _enters: Float[Tensor, "batch pos d_model"]
    _calls: tuple[_Call, ...]

    @classmethod
    def record(cls, model: Readable, ids: Int[Tensor, "batch pos"], layer: int) -> Rerun:
        """Run the model once on rows of text without padding."""
        at = model.layer(layer)
        entered: list[Tensor] = []
        calls: list[_Call] = []
        with ExitStack() as stack:
            for block in _blocks_from(model.hf, at):
                stack.enter_context(_recorded(block, entered, calls))
            captured = capture(model, ids, layers=[layer], residual=True)
        assert captured.final_residual is not None, "it was asked for"
        found = cls(
            at=at,
            ids=ids,
            z=captured.z[layer],
            final=captured.final,
            final_residual=captured.final_residual,
            is_short=True,
            _hf=model.hf,
            _norm=model.final_norm,
            _enters=entered[0],
            _calls=tuple(calls),
        )
        if agree(found.with_heads(found.z), found.final, dtype=model.hf.dtype):
            return found
        return replace(found, is_short=False)

    @torch.no_grad()
    def with_heads(
        self, z: Float[Tensor, "batch pos head d_head"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """The final normed state with ``z`` as the activations of the layer's heads."""
        with _holding(self.at.projection, z):
            if not self.is_short:
                return run_base(self._hf, self.ids)
            stream = self._enters
            for call in self._calls:
                stream = call.again(stream)
        return self._norm.module(stream)


def _blocks_from(hf: PreTrainedModel, at: HeadLayer) -> list[nn.Module]:
    """The block of a layer and those after it, with or without heads."""
    blocks = all_blocks(hf, at)
    return blocks[next(i for i, block in enumerate(blocks) if block is at.block) :]


def _recorded(block: nn.Module, entered: list[Tensor], calls: list[_Call]) -> RemovableHandle:
    return block.register_forward_pre_hook(partial(_record, entered, calls), with_kwargs=True)


def _record(
    entered: list[Tensor],
    calls: list[_Call],
    block: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    rest = {k: v for k, v in kwargs.items() if k != "hidden_states"}
    if not calls:  # for the later blocks the stream is recomputed
        entered.append(args[0] if args else kwargs["hidden_states"])
    calls.append(_Call(block, args[1:], rest))


def _holding(projection: nn.Module, z: Tensor) -> RemovableHandle:
    return projection.register_forward_pre_hook(partial(_hold, z))


def _hold(z: Tensor, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    activation = args[0]  # some models flatten batch and position before they project
    return (z.to(activation).reshape(activation.shape), *args[1:])
