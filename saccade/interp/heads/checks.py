"""Checks of every model that is opened, so that a wrong reading is refused, not shown.

Four checks (see README.md): the heads sum to the output of the projection; each head changes with
the values of one value head only; the unembedding gives the model's own logits; no token changes
activations before it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from saccade.errors import ModelError
from saccade.interp.heads.capture import (
    TOLERANCE,
    Trial,
    added_to,
    agree,
    head_outputs,
    keep_in,
    n_embedded,
    on_input,
    on_output,
    run_through,
    trial_ids,
    worst,
)
from saccade.interp.heads.residual_path import Unembedding
from saccade.interp.heads.taps import HeadLayer, signature

OVERRIDE = (
    "if you know better, give `taps` a regular expression for the paths of the output projections"
)


@torch.no_grad()
def check_weights(hf: PreTrainedModel) -> None:
    """Refuse weights that are not finite, also where the trial does not use them, or all zero.

    A sum is not finite if one of its terms is not; it takes a tenth of the time of testing each.
    """
    for path, weight in hf.named_parameters():
        if weight.is_meta or weight.dtype not in TOLERANCE:  # offloaded by accelerate, or quantised
            continue
        wide = torch.promote_types(weight.dtype, torch.float32)
        if bool(weight.sum(dtype=wide).isfinite()):
            continue
        if n_wrong := int((~weight.isfinite()).sum()):  # or else the sum itself was too large
            raise ModelError(
                f"the weights of this {hf.config.model_type} model are not finite: {n_wrong} of "
                f"{weight.numel()} numbers in {path} are NaN or infinite",
                hint="the checkpoint is damaged, or its training diverged: fetch it again",
            )
    embedding = hf.get_input_embeddings().weight
    if isinstance(embedding, Tensor) and not (embedding.is_meta or bool(embedding.any())):
        raise ModelError(
            f"the input embedding of this {hf.config.model_type} model is all zero",
            hint="the checkpoint is damaged: fetch it again",
        )


def check_trial(hf: PreTrainedModel, trial: Trial) -> None:
    """Refuse a model whose finite weights give activations that are not finite, or all zero."""
    is_finite = bool(trial.logits.isfinite().all() and trial.final.isfinite().all())
    if is_finite and bool(trial.final.any()):
        return
    dtype = str(hf.dtype).removeprefix("torch.")
    found = "all zero" if is_finite else "not finite"
    raise ModelError(
        f"this {hf.config.model_type} model overflows in {dtype}: its output on a short text is "
        f"{found}",
        hint="open it with dtype='float32'; if it was, its config or its checkpoint is damaged",
    )


def check_tokenizer(hf: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer whose ordinary tokens have no row in the embedding.

    Added tokens may lie beyond it, as Gemma 3's token for images does: they are refused when a
    text contains one.
    """
    n_rows = n_embedded(hf)
    vocabulary = tokenizer.get_vocab()
    added = tokenizer.added_tokens_decoder
    if beyond := [id_ for id_ in vocabulary.values() if id_ >= n_rows and id_ not in added]:
        raise ModelError(
            f"the tokenizer does not fit the model: expected ids below {n_rows}, as many as the "
            f"embedding has rows, found {len(beyond)} up to {max(beyond)}",
            hint="put the tokenizer that the model was trained with into the folder of its weights",
        )


@torch.no_grad()
def check_sum(layers: Sequence[HeadLayer], trial: Trial) -> None:
    """Refuse a tap where heads and bias do not sum to the output of the projection."""
    for layer in layers:
        if layer.index not in trial.reads:
            raise ModelError(f"{layer.path} was not used when the model ran", hint=OVERRIDE)
        flat, written = (
            trial.reads[layer.index][..., -1:, :],
            trial.writes[layer.index][..., -1:, :],
        )
        heads = head_outputs(layer, flat.unflatten(-1, (layer.n_heads, layer.d_head)))
        found = heads.sum(-2) + layer.projection(torch.zeros_like(flat))
        if not agree(found, written, dtype=flat.dtype):
            raise ModelError(
                f"{layer.path}: the outputs of its {layer.n_heads} heads should sum to its "
                f"output, but they differ by {worst(found, written):.1e} of it",
                hint=OVERRIDE,
            )


@torch.no_grad()
def check_values(hf: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
    """Refuse a tap whose blocks are not heads: each must change with one value head alone.

    A text of one token has attention weight 1, so there the activation of a head is exactly its
    value. Every block of output features of a linear map of the attention is changed in turn
    (each in a row of one batch): a block of queries or keys may change nothing, a block of values
    must change the heads that share it and no others. One layer of each kind is tried.
    """
    tried = set()
    for layer in layers:
        if (kind := signature(layer)) not in tried:
            tried.add(kind)
            _check_values_of(hf, layer)


def _check_values_of(hf: PreTrainedModel, layer: HeadLayer) -> None:
    reached: set[int] = set()
    for name, per_block, moved in _moved_heads(hf, layer):
        n_features: dict[frozenset[int], int] = defaultdict(int)
        for heads in moved:
            if heads:
                n_features[heads] += per_block
        for heads, n in n_features.items():
            overlaps = any(heads & o and not (heads <= o or o <= heads) for o in n_features)
            # More features than a head has: two value heads have been mixed before the tap.
            if n > layer.d_head or overlaps:
                _refuse_mixed(layer, name, sorted(heads), n)
            reached |= heads
    if missing := sorted(set(range(layer.n_heads)) - reached):
        raise ModelError(
            f"{layer.path}: head {missing[0]} should change with the values of its attention, but "
            "nothing there changes it",
            hint=OVERRIDE,
        )


def _moved_heads(
    hf: PreTrainedModel, layer: HeadLayer
) -> list[tuple[str, int, list[frozenset[int]]]]:
    """For each linear map: its name, the block size, and the heads that each block changes."""
    linears = {n: m for n, m in layer.attention.named_modules() if _is_linear(m, layer)}
    outputs: dict[str, Tensor] = {}
    taps: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, module in linears.items():
            stack.enter_context(on_output(module, keep_in(outputs, name)))
        run_through(hf, trial_ids(hf)[:1, :1], layer.projection)
    rows, nudges = _plan(layer, outputs)
    with ExitStack() as stack:
        for name, module in linears.items():
            if name in nudges:
                stack.enter_context(added_to(module, nudges[name]))
                stack.enter_context(on_output(module, keep_in(outputs, name)))
        stack.enter_context(on_input(layer.projection, keep_in(taps, "z")))
        n_rows = 1 + sum(len(own) for own, _ in rows.values())
        run_through(hf, trial_ids(hf)[:1, :1].expand(n_rows, 1), layer.projection)
    z = taps["z"].float().view(n_rows, layer.n_heads, layer.d_head)
    change = (z - z[:1]).abs().amax(-1)  # [row, head]
    is_moved = change > 1e-3 * change.max().clamp_min(1e-30)
    return [
        (name, per_block, [frozenset(is_moved[row].nonzero()[:, 0].tolist()) for row in own])
        for name, (own, per_block) in rows.items()
        if not _feeds_another(own, {n: o for n, o in outputs.items() if n in nudges and n != name})
    ]


def _plan(
    layer: HeadLayer, outputs: dict[str, Tensor]
) -> tuple[dict[str, tuple[list[int], int]], dict[str, Tensor]]:
    """Assign each block of each linear map a separate batch row; row 0 stays unchanged."""
    rows: dict[str, tuple[list[int], int]] = {}
    next_row = 1
    for name, output in outputs.items():
        width = output.shape[-1]
        # Fused maps interleave queries, keys and values; this divides every layout's pieces.
        share = width // layer.n_heads if width % layer.n_heads == 0 else width
        per_block = math.gcd(layer.d_head, share)
        rows[name] = (list(range(next_row, next_row + width // per_block)), per_block)
        next_row += width // per_block
    nudges = {}
    generator = torch.Generator().manual_seed(2)
    for name, (own, per_block) in rows.items():
        output = outputs[name]
        nudge = torch.zeros(next_row, output.shape[-1])
        # Larger than all activations there, so that the effect of a norm on other heads shows.
        size = 4.0 * float(output.abs().max()) + 1.0
        for block, row in enumerate(own):
            part = slice(block * per_block, (block + 1) * per_block)
            nudge[row, part] = size * (0.5 + torch.rand(per_block, generator=generator))
        nudges[name] = nudge[:, None]  # [row, 1, width]
    return rows, nudges


def _feeds_another(own: list[int], others: dict[str, Tensor]) -> bool:
    """Whether these rows differ from row 0 in another linear map: this one is a latent of it."""
    for output in others.values():
        flat = output.float().reshape(output.shape[0], -1)
        if not torch.allclose(flat[own], flat[:1].expand(len(own), -1), rtol=1e-2, atol=1e-4):
            return True
    return False


def _refuse_mixed(layer: HeadLayer, name: str, heads: list[int], n_features: int) -> None:
    norms = [n for n, m in layer.attention.named_modules() if "norm" in type(m).__name__.lower()]
    because = f" (it has {', '.join(norms)} inside)" if norms else ""
    raise ModelError(
        f"{layer.path} does not read separate heads: each should change with the {layer.d_head} "
        f"values of one value head, but {n_features} features of {name} change heads "
        f"{', '.join(map(str, heads))} together{because}",
        hint=OVERRIDE,
    )


def _is_linear(module: nn.Module, layer: HeadLayer) -> bool:
    if module is layer.projection or list(module.children()):
        return False
    return isinstance(getattr(module, "in_features", getattr(module, "nx", None)), int)


def check_logits(hf: PreTrainedModel, unembedding: Unembedding, trial: Trial) -> None:
    """Refuse an unembedding that does not give the model's own logits."""
    found = unembedding.logits(trial.final)
    expected = trial.logits.to(found.device)
    if found.shape != expected.shape or not agree(found, expected, dtype=hf.dtype):
        raise ModelError(
            f"the final state of this {hf.config.model_type} model does not give its logits: they "
            f"differ by {worst(found, expected):.1e} of the largest (scale {unembedding.scale:g}, "
            f"soft-cap {unembedding.softcap})",
            hint="this model type is not supported; please report it",
        )


def check_causal(hf: PreTrainedModel, trial: Trial) -> None:
    """Refuse a model that looks ahead: its two trial rows differ in the last token only."""
    first, second = trial.final[:, :-1]
    if not agree(first, second, dtype=hf.dtype):
        raise ModelError(
            f"this {hf.config.model_type} model is not causal: a later token changes activations "
            "at earlier ones, as in an encoder",
            hint="saccade reads decoder-only language models such as GPT-2, Llama or Qwen",
        )
