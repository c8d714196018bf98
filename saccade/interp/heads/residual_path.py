"""The path from a head to the logits: post-norm, multiplier, final norm, unembedding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from saccade.errors import ModelError, UsageError
from saccade.interp.heads.capture import (
    Captured,
    Readable,
    Trial,
    added_to,
    agree,
    base_of,
    head_outputs,
    on_input,
    on_output,
    run_through,
    trial_ids,
)
from saccade.interp.heads.taps import FinalNorm, FrozenNorm, HeadLayer, probe_norm, signature

# From the final normed state to logits: matrix, bias, scale and soft-cap.

SOFTCAPS = ("final_logit_softcapping", "output_logit_soft_cap")
MULTIPLIERS = ("logit_scale", "logits_scaling", "output_multiplier", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)


@dataclass(frozen=True)
class Unembedding:
    """The map from the final normed state to the model's logits.

    ``logits = softcap * tanh((weight @ final + bias) * scale / softcap)``; models without a
    soft-cap (all but Gemma 2 and similar) stop before the tanh. The scale is Cohere's
    ``logit_scale`` or Granite's ``1 / logits_scaling``.

    >>> unembedding = Unembedding(weight=torch.eye(3), bias=None, scale=0.5, softcap=None)
    >>> unembedding.logits(torch.tensor([[2.0, 4.0, 6.0]]))
    tensor([[1., 2., 3.]])
    """

    weight: Float[Tensor, "d_vocab d_model"]
    bias: Float[Tensor, " d_vocab"] | None
    scale: float
    softcap: float | None

    def logits(
        self, final: Float[Tensor, "*batch d_model"], *, tokens: Int[Tensor, " token"] | None = None
    ) -> Float[Tensor, "*batch n"]:
        """The model's own logits, for every token or only for the ids in ``tokens``."""
        logits = self.linear(final, tokens=tokens)
        if self.bias is not None:
            bias = self.bias if tokens is None else self.bias[tokens.to(self.bias.device)]
            logits = logits + bias * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def linear(
        self, part: Float[Tensor, "*batch d_model"], *, tokens: Int[Tensor, " token"] | None = None
    ) -> Float[Tensor, "*batch n"]:
        """The contribution of a part of the final state to the logits: no bias, no soft-cap."""
        weight = self.weight if tokens is None else self.weight[tokens.to(self.weight.device)]
        logits = linear(part.to(weight), weight)
        return logits if self.scale == 1.0 else logits * self.scale


@torch.no_grad()
def find_unembedding(hf: PreTrainedModel, trial: Trial) -> Unembedding:
    """The unembedding of a model; scale and soft-cap are the config's, tried on a short text.

    Where none of the config's numbers gives the model's logits, the scale is measured from them;
    `saccade.interp.heads.checks.check_logits` verifies the result.
    """
    head = hf.get_output_embeddings()
    if head is None or getattr(head, "weight", None) is None or head.weight.dim() != 2:
        raise ModelError(
            f"this {hf.config.model_type} model has no output embedding to turn states into tokens",
            hint="open the checkpoint of a causal language model, not of its base model",
        )
    final, expected = trial.final, trial.logits
    if final.shape[-1] != head.weight.shape[1]:
        raise ModelError(
            f"the base model ends in {final.shape[-1]} features and the output embedding reads "
            f"{head.weight.shape[1]}",
            hint="this model type is not supported; please report it",
        )
    softcap = _softcap(hf)
    weight, bias = _values(head, "weight"), _values(head, "bias")
    assert weight is not None, "a linear map has a weight"
    plain = Unembedding(weight=weight, bias=bias, scale=1.0, softcap=None)
    final, expected = final.to(weight.device), expected.to(weight.device)
    raw = plain.logits(final).float()
    for scale in _scales(hf, raw, expected.float(), softcap):
        found = Unembedding(weight=plain.weight, bias=plain.bias, scale=scale, softcap=softcap)
        if agree(found.logits(final), expected, dtype=hf.dtype):
            return found
    return plain


def _values(head: nn.Module, name: str) -> Tensor | None:
    """A parameter; if accelerate has offloaded it, the values behind the placeholder."""
    parameter = getattr(head, name, None)
    if parameter is None or parameter.device.type != "meta":
        return parameter
    hook = getattr(head, "_hf_hook", None)
    for each in (hook, *getattr(hook, "hooks", ())):
        if (weights := getattr(each, "weights_map", None)) is not None:
            return weights[name]
    raise AssertionError(f"{name} of the output embedding is a placeholder without values")


def _softcap(hf: PreTrainedModel) -> float | None:
    config = hf.config.get_text_config(decoder=True)
    found = [getattr(config, name, None) for name in SOFTCAPS]
    return next((float(cap) for cap in found if isinstance(cap, int | float) and cap > 0), None)


def _scales(
    hf: PreTrainedModel, raw: Tensor, expected: Tensor, softcap: float | None
) -> Iterator[float]:
    config = hf.config.get_text_config(decoder=True)
    yield 1.0
    for name in MULTIPLIERS:
        if isinstance(value := getattr(config, name, None), int | float):
            yield float(value)
    for name in DIVISORS:
        if isinstance(value := getattr(config, name, None), int | float) and value:
            yield 1.0 / value
    if softcap is not None:
        can_undo = expected.abs() < 0.999 * softcap  # the rest is rounded to the cap itself
        raw, expected = raw[can_undo], softcap * torch.atanh(expected[can_undo] / softcap)
    yield float((raw * expected).sum() / raw.square().sum().clamp_min(1e-30))


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
                f"{path}, a linear map, before it is turned into tokens",
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

    Nothing is identified by name: a run shows which norm reads the output of the projection, and
    a second run, with that output perturbed, by which factor the perturbation arrives in the
    stream. One layer of each kind is tried.
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
    """The norm whose input is exactly the output of the projection, if there is one."""
    d_model = seen["wrote"].shape[-1]
    for path, module in layer.block.named_modules():
        reads = seen.get(f"in:{path}")
        if reads is None or isinstance(module, nn.Dropout | nn.Identity) or list(module.children()):
            continue
        if _same(reads, seen["wrote"]):
            return path, probe_norm(module, d_model=d_model, path=f"{layer.path} -> {path}")
    return None, None


def _normed_by_its_block(layer: HeadLayer, seen: dict[str, Tensor]) -> bool:
    """Whether the block ends in a norm, so that the stream is not a sum of outputs."""
    for path, module in layer.block.named_modules():
        is_norm = "norm" in type(module).__name__.lower() and f"out:{path}" in seen
        if is_norm and _same(seen[f"out:{path}"], seen["block"]):
            return True
    return False


def _tidy(factor: float, hf: PreTrainedModel) -> float:
    """The measured factor, replaced by the config's number if they agree."""
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


# The direct contribution of a head to the final state and to the logits.


@torch.no_grad()
def direct_states(
    model: Readable,
    captured: Captured,
    layer: int,
    *,
    positions: Sequence[int] | None = None,
) -> Float[Tensor, "batch pos head d_model"]:
    """The direct contribution of each head of a layer to the final normed state.

    Every norm on the way keeps the scale it had in this run, so that the heads add up.
    """
    at = model.layer(layer)
    if captured.final_residual is None or layer not in captured.z:
        raise UsageError(
            f"this capture does not hold the contribution of layer {layer} to the final state",
            hint=f"capture with residual=True and layers that include {layer}",
        )
    if not at.reaches_stream:
        raise ModelError(
            f"{at.path} has no direct path to the tokens: its block norms the stream itself",
            hint="read this model's heads with lenses instead",
        )
    index = list(range(captured.final.shape[1])) if positions is None else list(positions)
    z = captured.z[layer][:, index]  # [batch, pos, head, d_head]
    added = head_outputs(at, z)
    if at.post_norm is not None:
        added = at.post_norm.frozen(added, at.projection(z.flatten(-2))[:, :, None])
    added = added * at.multiplier
    whole = captured.final_residual[:, index, None]  # [batch, pos, 1, d_model]
    return model.final_norm.frozen(added.to(whole.device), whole)


def direct_logits(
    model: Readable,
    captured: Captured,
    layer: int,
    tokens: Int[Tensor, "batch pos"],
    *,
    positions: Sequence[int] | None = None,
) -> Float[Tensor, "batch pos head"]:
    """Direct logit attribution: the contribution of each head of a layer to the logit of a token.

    Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits". The frozen norms keep
    the sum over all parts equal to the logit; a soft-cap is not linear and is left out.

    Args:
        tokens: one id for each row and each of ``positions``.
        positions: which positions of the capture; all by default.
    """
    states = direct_states(model, captured, layer, positions=positions)
    weight = model.unembedding.weight
    rows = weight[tokens.to(weight.device)].float()  # [batch, pos, d_model]
    return torch.einsum("bphd,bpd->bph", states.to(rows.device), rows) * model.unembedding.scale
