"""What the heads of a model hold while it reads a text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, PreTrainedModel

from saccade.errors import ModelError, UsageError
from saccade.interp.heads.attention_weights import record_attention
from saccade.interp.heads.encoding import Encoding
from saccade.interp.heads.hooks import keep_in, on_input, on_output, run_base
from saccade.interp.heads.residual_path import Unembedding
from saccade.interp.heads.taps import FinalNorm, HeadLayer


@runtime_checkable
class Readable(Protocol):
    """What of a `LanguageModel` a capture needs."""

    @property
    def hf(self) -> PreTrainedModel:
        """The Hugging Face model."""
        ...

    @property
    def layers(self) -> tuple[HeadLayer, ...]:
        """Its layers with heads."""
        ...

    @property
    def final_norm(self) -> FinalNorm:
        """The norm before the unembedding."""
        ...

    @property
    def unembedding(self) -> Unembedding:
        """The map from final states to logits."""
        ...

    @property
    def encoding(self) -> Encoding:
        """What the tokenizer adds to the tokens of a text."""
        ...

    def layer(self, index: int) -> HeadLayer:
        """The heads of one layer."""
        ...


class Captured(NamedTuple):
    """What one run of the base model left behind; nothing that was not asked for."""

    z: dict[int, Float[Tensor, "batch pos head d_head"]]
    """By layer: what each head holds before the output projection."""
    final: Float[Tensor, "batch pos d_model"]
    """The final normed state, which the unembedding turns into logits."""
    residual: dict[int, Float[Tensor, "batch pos d_model"]]
    """By layer: the residual stream after it."""
    final_residual: Float[Tensor, "batch pos d_model"] | None
    """What enters the final norm."""
    attention: dict[int, Float[Tensor, "batch head query_pos key_pos"]]
    """By layer: the attention weights of the asked query positions."""


# One more than the house allows: each says what is kept, and most calls need one of them.
@torch.no_grad()
def capture(  # noqa: PLR0913
    model: Readable,
    input_ids: Int[Tensor, "batch pos"],
    *,
    mask: Bool[Tensor, "batch key_pos"] | None = None,
    layers: Sequence[int] | None = None,
    positions: Int[Tensor, "batch kept_pos"] | None = None,
    residual: bool = False,
    attention: Sequence[int] = (),
    attention_positions: Sequence[int] | None = None,
    cache: Cache | None = None,
) -> Captured:
    """Run the base model once (no logits are made) and keep what its heads hold.

    Without gradients, but not in torch's inference mode: its tensors could not be used in the
    training of a lens.

    Args:
        mask: True = a real token. With a ``cache`` it covers the cached positions too.
        layers: whose ``z`` (and ``residual``) to keep; all by default.
        positions: keep ``z`` and ``final`` at these positions of each row only; all by default.
        residual: keep the residual stream after each of ``layers``, and what enters the final norm.
        attention: layers whose attention weights to compute.
        attention_positions: the query positions to compute them for; all by default.
        cache: keys and values of earlier positions; it grows by this run's.
    """
    wanted = [model.layer(i) for i in layers] if layers is not None else list(model.layers)
    z: dict[int, Tensor] = {}
    stream: dict[int, Tensor] = {}
    last: dict[str, Tensor] = {}
    shape = tuple(input_ids.shape)
    with ExitStack() as stack:
        for layer in wanted:
            keep = partial(_keep_heads, z, layer, shape, positions)
            stack.enter_context(on_input(layer.projection, keep))
            if residual:
                stack.enter_context(on_output(layer.block, keep_in(stream, layer.index)))
        if residual:
            stack.enter_context(on_input(model.final_norm.module, keep_in(last, "final")))
        rows = stack.enter_context(
            record_attention(model.hf, [model.layer(i) for i in attention], attention_positions)
        )
        final = run_base(model.hf, input_ids, mask=mask, cache=cache)
    _refuse_not_finite(final if mask is None else final[mask[:, -shape[1] :].to(final.device)])
    entered = last.get("final", final if residual else None)
    return Captured(z, at_positions(final, positions), stream, entered, dict(rows))


def at_positions(
    activations: Float[Tensor, "batch pos *more"],
    positions: Int[Tensor, "batch kept_pos"] | None,
) -> Float[Tensor, "batch kept_pos *more"]:
    """Activations at some positions of each row; at all of them for None.

    >>> at_positions(torch.arange(12.0).view(2, 6), torch.tensor([[0, 3], [1, 4]]))
    tensor([[ 0.,  3.],
            [ 7., 10.]])
    """
    if positions is None:
        return activations
    row = torch.arange(len(positions), device=activations.device)[:, None]
    return activations[row, positions.to(activations.device)]


def head_outputs(
    layer: HeadLayer, z: Float[Tensor, "*batch head d_head"]
) -> Float[Tensor, "*batch head d_model"]:
    """What each head alone writes: all other heads set to zero, then projected; no bias.

    Going through the module itself is right for Linear, Conv1D and quantised weights alike.
    The outputs sum to what the projection writes, less its bias.
    """
    n_heads, d_head = z.shape[-2:]
    alone = torch.diag_embed(z.movedim(-1, -2)).movedim(-3, -1)  # [..., head, head, d_head]
    flat = alone.reshape(*z.shape[:-2], n_heads, n_heads * d_head)
    return layer.projection(flat) - projection_bias(layer, z)


@torch.no_grad()
def output_matrix(layer: HeadLayer) -> Float[Tensor, "head d_head d_model"]:
    """The matrix by which each head's ``z`` is turned into what it writes."""
    like = next((p for p in layer.projection.parameters() if p.is_floating_point()), None)
    units = torch.eye(layer.d_head)
    if like is not None:
        units = units.to(like.dtype)
        # Weights that accelerate keeps elsewhere show as "meta"; it moves the input itself.
        units = units if like.device.type == "meta" else units.to(like.device)
    alone = units[:, None].expand(-1, layer.n_heads, -1)  # [d_head, head, d_head]
    return head_outputs(layer, alone).transpose(0, 1)


def projection_bias(layer: HeadLayer, z: Tensor) -> Tensor:
    """What the projection writes when every head is silent."""
    return layer.projection(z.new_zeros(1, layer.n_heads * layer.d_head))[0]


@torch.no_grad()
def direct_states(
    model: Readable,
    captured: Captured,
    layer: int,
    *,
    positions: Sequence[int] | None = None,
) -> Float[Tensor, "batch pos head d_model"]:
    """What each head of a layer adds directly to the final normed state.

    Every norm on the way keeps the scale it had in this run, so that the heads add up.
    """
    at = model.layer(layer)
    if captured.final_residual is None or layer not in captured.z:
        raise UsageError(
            f"this capture does not hold what layer {layer}'s heads add to the final state",
            hint=f"capture with residual=True and layers that include {layer}",
        )
    if not at.reaches_stream:
        raise ModelError(
            f"{at.path} has no direct path to the words: its block norms the stream itself",
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
    words: Int[Tensor, "batch pos"],
    *,
    positions: Sequence[int] | None = None,
) -> Float[Tensor, "batch pos head"]:
    """Direct logit attribution: what each head of a layer adds to the logit of a word.

    Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits". The frozen norms keep
    the sum over all parts equal to the logit; a soft-cap, being no sum, is left out.

    Args:
        words: one id for each row and each of ``positions``.
        positions: which positions of the capture; all by default.
    """
    states = direct_states(model, captured, layer, positions=positions)
    weight = model.unembedding.weight
    rows = weight[words.to(weight.device)].float()  # [batch, pos, d_model]
    return torch.einsum("bphd,bpd->bph", states.to(rows.device), rows) * model.unembedding.scale


def _refuse_not_finite(final: Float[Tensor, "*token d_model"]) -> None:
    """The weights are finite, which was checked; what they make of a text may still overflow."""
    if not bool(final.isfinite().all()):
        raise ModelError(
            "the model overflows on this text: its final state is not finite",
            hint="open it with a wider dtype (float32), or make a smaller change to it",
        )


def _keep_heads(
    into: dict[int, Tensor],
    layer: HeadLayer,
    shape: tuple[int, ...],
    positions: Tensor | None,
    flat: Tensor,
) -> None:
    # Some models flatten batch and position before they project.
    activation = flat.reshape(*shape, layer.n_heads, layer.d_head)
    # A copy, if not all is kept, so that the rest can go while it is still in the cache.
    into[layer.index] = at_positions(activation, positions)
