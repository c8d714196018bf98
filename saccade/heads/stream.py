"""The way from a head to the words: what stands between a projection, the stream and the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from saccade.errors import ModelError
from saccade.heads.hooks import added_to, on_input, on_output
from saccade.heads.norms import FinalNorm, FrozenNorm, probe_norm
from saccade.heads.running import agree, base_of, run_through, trial_ids
from saccade.heads.taps import HeadLayer, signature
from saccade.heads.trial import Trial


@torch.no_grad()
def find_final_norm(hf: PreTrainedModel, trial: Trial) -> FinalNorm:
    """Find the module whose output is the base model's output: the norm before the unembedding.

    A model whose last layer norms its own output (some OPT) has none: it gets an identity.
    """
    d_model = trial.final.shape[-1]
    modules = dict(base_of(hf).named_modules())
    for path, output in reversed(trial.outside.items()):
        module = modules[path]
        if not _same(output, trial.final) or isinstance(module, nn.Dropout):
            continue
        if isinstance(module, nn.Linear):
            raise ModelError(
                f"the residual stream of this {hf.config.model_type} model goes through "
                f"{path}, a linear map, before it is turned into words",
                hint="models of this form (OPT-350m) are not supported",
            )
        return probe_norm(module, d_model=d_model, path=path)
    if _same(trial.last_block, trial.final):
        return probe_norm(nn.Identity(), d_model=d_model)
    raise ModelError(
        f"found no norm that ends this {hf.config.model_type} model: none of the modules after its "
        "layers gives the base model's output",
        hint="this model type is not supported; please report it",
    )


@torch.no_grad()
def follow_to_stream(hf: PreTrainedModel, layers: Sequence[HeadLayer]) -> tuple[HeadLayer, ...]:
    """Find the norm and the multiplier between each projection and the residual stream.

    Nothing is known by name: a run shows which norm reads what the projection wrote, and a second
    run, with that output nudged, by which factor the nudge arrives in the stream. One layer of
    each kind is tried.
    """
    routes: dict[Any, tuple[str | None, float, bool]] = {}
    followed = []
    for layer in layers:
        kind = signature(layer)
        if kind not in routes:
            routes[kind] = _route(hf, layer)
        norm_path, multiplier, reaches = routes[kind]
        norm = None
        if norm_path is not None:
            module = layer.block.get_submodule(norm_path)
            norm = probe_norm(module, d_model=_out_features(layer), path=norm_path)
        followed.append(
            replace(layer, post_norm=norm, multiplier=multiplier, reaches_stream=reaches)
        )
    return tuple(followed)


def _route(hf: PreTrainedModel, layer: HeadLayer) -> tuple[str | None, float, bool]:
    """Path of the post-norm within the block, multiplier, and whether the stream is reached."""
    before = _record(hf, layer, nudge=None)
    written = before["wrote"]
    norm_path, norm = _post_norm(layer, before)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(written.shape, generator=generator).to(written)
    after = _record(hf, layer, nudge=noise * written.float().std().to(written))
    arrives = after["wrote"].float() - written.float()
    if norm is not None:
        arrives = norm.normed(after["wrote"]).float() - norm.normed(written).float()
    if _normed_by_its_block(layer, before):
        return norm_path, 1.0, False
    for path in [p for p in before if p.startswith("in:")] + ["block"]:
        if path == f"in:{norm_path}" or before[path].shape != written.shape:
            continue
        if _same(before[path], written):  # a dropout: still on the way
            continue
        moved = after[path].float() - before[path].float()
        factor = float((moved * arrives).sum() / arrives.square().sum())
        if abs(factor) > 1e-3 and agree(moved, factor * arrives, slack=3.0, dtype=written.dtype):
            return norm_path, _tidy(factor, hf), True
    return norm_path, 1.0, False


def _record(hf: PreTrainedModel, layer: HeadLayer, *, nudge: Tensor | None) -> dict[str, Tensor]:
    """The tensors at every module of the block outside its attention, in order of execution."""
    inside = set(layer.attention.modules()) - {layer.attention}
    seen: dict[str, Tensor] = {}
    ids = trial_ids(hf)
    with ExitStack() as stack:
        if nudge is not None:
            stack.enter_context(added_to(layer.projection, nudge))
        stack.enter_context(on_output(layer.projection, partial(_put, seen, "wrote", ids)))
        for path, module in layer.block.named_modules():
            if path and module not in inside and module is not layer.attention:
                stack.enter_context(on_input(module, partial(_put, seen, f"in:{path}", ids)))
                stack.enter_context(on_output(module, partial(_put, seen, f"out:{path}", ids)))
        stack.enter_context(on_output(layer.block, partial(_put, seen, "block", ids)))
        run_through(hf, ids, layer.block)
    return seen


def _post_norm(layer: HeadLayer, seen: dict[str, Tensor]) -> tuple[str | None, FrozenNorm | None]:
    """The norm that reads exactly what the projection wrote, if there is one."""
    d_model = seen["wrote"].shape[-1]
    for path, module in layer.block.named_modules():
        reads = seen.get(f"in:{path}")
        if reads is None or isinstance(module, nn.Dropout | nn.Identity) or list(module.children()):
            continue
        if _same(reads, seen["wrote"]):
            return path, probe_norm(module, d_model=d_model, path=f"{layer.path} -> {path}")
    return None, None


def _normed_by_its_block(layer: HeadLayer, seen: dict[str, Tensor]) -> bool:
    """Whether the block ends in a norm, so that the stream is not a sum of what was written."""
    for path, module in layer.block.named_modules():
        is_norm = "norm" in type(module).__name__.lower() and f"out:{path}" in seen
        if is_norm and _same(seen[f"out:{path}"], seen["block"]):
            return True
    return False


def _tidy(factor: float, hf: PreTrainedModel) -> float:
    """The measured factor, replaced by the config's own number where they are the same."""
    config = hf.config.get_text_config(decoder=True)
    for known in (1.0, getattr(config, "residual_multiplier", None)):
        if isinstance(known, int | float) and abs(factor - known) < 1e-2 * abs(known):
            return float(known)
    return factor


def _out_features(layer: HeadLayer) -> int:
    width = getattr(layer.projection, "out_features", None)
    width = getattr(layer.projection, "nf", None) if width is None else width  # Conv1D
    assert isinstance(width, int), f"{layer.path} is a linear map"
    return width


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _put(into: dict[str, Tensor], key: str, ids: Tensor | None, tensor: Any) -> None:
    if isinstance(tensor, Tensor):
        if ids is not None and tensor.dim() == 2 and tensor.shape[0] == ids.numel():
            tensor = tensor.view(*ids.shape, -1)  # OPT flattens batch and position
        # A copy: some models add to their tensors in place later on.
        into[key] = tensor.clone()
