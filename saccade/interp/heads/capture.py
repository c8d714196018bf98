"""Run a model with hooks and capture the activations of its heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import Cache, PreTrainedModel

from saccade.errors import ModelError
from saccade.interp.heads.attention_weights import record_attention
from saccade.interp.heads.taps import FinalNorm, HeadLayer

if TYPE_CHECKING:
    from saccade.interp.heads.model import Encoding
    from saccade.interp.heads.residual_path import Unembedding

# Hooks that are removed when their ``with`` block ends. They are created for every layer of every
# run, and the tests' shape checker compiles a nested function at each call: hooks are partial
# functions instead.


def on_input(module: nn.Module, keep: Callable[[Any], None]) -> RemovableHandle:
    """Call ``keep`` with the first input of the module, each time it runs.

    >>> seen = []
    >>> layer = nn.Identity()
    >>> with on_input(layer, seen.append):
    ...     _ = layer(1)
    >>> _ = layer(2)
    >>> seen
    [1]
    """
    return module.register_forward_pre_hook(partial(_input_to, keep), with_kwargs=True)


def _input_to(
    keep: Callable[[Any], None], _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    keep(args[0] if args else kwargs.get("hidden_states"))


def on_output(module: nn.Module, keep: Callable[[Any], None]) -> RemovableHandle:
    """Call ``keep`` with the output of the module (the first of several)."""
    return module.register_forward_hook(partial(_output_to, keep))


def _output_to(keep: Callable[[Any], None], _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
    keep(output[0] if isinstance(output, tuple | list) else output)


def keep_in(into: dict[Any, Tensor], key: Any) -> Callable[[Any], None]:
    """A callback for `on_input` or `on_output` that stores the last tensor in a dict."""
    return partial(_keep_tensor, into, key)


def _keep_tensor(into: dict[Any, Tensor], key: Any, tensor: Any) -> None:
    if isinstance(tensor, Tensor):
        into[key] = tensor


def added_to(module: nn.Module, amount: Tensor) -> RemovableHandle:
    """Add ``amount`` to the output of the module."""
    return module.register_forward_hook(partial(_add, amount))


def _add(amount: Tensor, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
    return output + amount.to(output).view(output.shape)


# Run the base model: everything but the unembedding.

# How far two ways to compute the same tensor may differ, relative to its largest number.
TOLERANCE = {
    torch.float64: 1e-8,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}


def run_base(
    hf: PreTrainedModel,
    input_ids: Int[Tensor, "batch pos"],
    *,
    mask: Bool[Tensor, "batch key_pos"] | None = None,
    cache: Cache | None = None,
) -> Float[Tensor, "batch pos d_model"]:
    """The final normed state at every position; no logits are computed.

    Args:
        mask: True = a real token. With a ``cache`` it covers the cached positions too.
        cache: keys and values of earlier positions; this run's are appended.
    """
    device = input_device(hf)
    given: dict[str, Any] = {"input_ids": input_ids.to(device), "use_cache": cache is not None}
    if mask is not None and not bool(mask.all()):
        # transformers wants 1 = attend; a mask without padding would only cost speed.
        given["attention_mask"] = mask.to(device=device, dtype=torch.long)
    if cache is not None:
        given["past_key_values"] = cache
    return base_of(hf)(**given).last_hidden_state


def run_through(
    hf: PreTrainedModel, input_ids: Int[Tensor, "batch pos"], module: nn.Module
) -> None:
    """Run the model up to and including ``module``; the rest is not computed."""

    def stop(*_: Any) -> None:
        raise _DoneError

    with module.register_forward_hook(stop), suppress(_DoneError):
        run_base(hf, input_ids)


class _DoneError(Exception):
    """Ends a run early, when the wanted module is done."""


def base_of(hf: PreTrainedModel) -> nn.Module:
    """The model without its unembedding."""
    if (base := hf.base_model) is not hf:
        return base
    # Some classes (Llama 4's text model) do not name their base; it is their inner model.
    return next((child for child in hf.children() if isinstance(child, PreTrainedModel)), hf)


def input_device(hf: PreTrainedModel) -> torch.device:
    """The device for the token ids of a text."""
    device = _input_weight(hf).device
    # Weights that accelerate keeps elsewhere show as "meta"; it moves the ids itself.
    return torch.device("cpu") if device.type == "meta" else device


def _input_weight(hf: PreTrainedModel) -> Tensor:
    weight = hf.get_input_embeddings().weight
    assert isinstance(weight, Tensor), "an input embedding is a matrix"
    return weight


def n_embedded(hf: PreTrainedModel) -> int:
    """Number of rows of the input embedding."""
    return int(_input_weight(hf).shape[0])


def trial_ids(hf: PreTrainedModel) -> Int[Tensor, "2 5"]:
    """Two short rows of tokens to try a model with; they differ in the last token only."""
    n_tokens = n_embedded(hf)
    # From the middle of the vocabulary, away from padding and other special tokens.
    start = max(0, min(n_tokens // 2, n_tokens - 6))
    row = [start, start + 2, start + 1, start + 3]
    return torch.tensor([[*row, start + 4], [*row, start + 5]]) % n_tokens


def agree(a: Tensor, b: Tensor, *, dtype: torch.dtype, slack: float = 1.0) -> bool:
    """Whether two ways to compute a tensor agree, up to the rounding of ``dtype``."""
    return worst(a, b) <= TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16]) * slack


def worst(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number.

    >>> round(worst(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 3.0])), 3)
    0.25
    """
    largest = max(float(a.abs().max()), float(b.abs().max()), 1e-30)
    return float((a.float() - b.float().to(a.device)).abs().max()) / largest


# One short run of a model that is being opened, used by all the checks.


@dataclass(frozen=True)
class Trial:
    """Activations of a model on two short rows of tokens that differ in the last one only."""

    final: Float[Tensor, "batch pos d_model"]
    """The output of the base model."""
    logits: Float[Tensor, "batch pos d_vocab"]
    """The output of the whole model, in a separate run."""
    reads: dict[int, Tensor]
    """By layer: the input of the output projection."""
    writes: dict[int, Tensor]
    """By layer: its output."""
    outside: dict[str, Tensor]
    """By path, in order of the modules: outputs of modules outside of all layers."""
    last_block: Tensor
    """The output of the last layer."""

    def probe(self) -> tuple[float, ...]:
        """The entropy of the prediction at each position of the first row, in nats."""
        log_p = self.logits[0].float().log_softmax(-1)  # [pos, d_vocab]
        entropy = -(log_p.exp() * log_p).sum(-1)
        return tuple(round(float(each), 6) for each in entropy)


@torch.no_grad()
def try_model(hf: PreTrainedModel, layers: Sequence[HeadLayer]) -> Trial:
    """Run a model twice on a short text: its base with hooks, and then the whole model."""
    ids = trial_ids(hf)
    inside = {module for layer in layers for module in layer.block.modules()}
    reads: dict[int, Tensor] = {}
    writes: dict[int, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(on_input(layer.projection, keep_in(reads, layer.index)))
            stack.enter_context(on_output(layer.projection, keep_in(writes, layer.index)))
        leaves = [
            (path, module)
            for path, module in base_of(hf).named_modules()
            if module not in inside and not list(module.children())
        ]
        for path, module in leaves:
            stack.enter_context(on_output(module, keep_in(outputs, path)))
        last: dict[str, Tensor] = {}
        stack.enter_context(on_output(layers[-1].block, keep_in(last, "block")))
        final = run_base(hf, ids)
    logits = hf(input_ids=ids.to(input_device(hf)), use_cache=False).logits
    return Trial(
        final=final,
        logits=logits,
        reads=reads,
        writes=writes,
        outside={path: outputs[path] for path, _ in leaves if path in outputs},
        last_block=last["block"],
    )


@runtime_checkable
class Readable(Protocol):
    """The part of `LanguageModel` that a capture needs."""

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
        """The special tokens that the tokenizer adds to a text."""
        ...

    def layer(self, index: int) -> HeadLayer:
        """The heads of one layer."""
        ...


class Captured(NamedTuple):
    """The activations of one run of the base model; only those that were requested."""

    z: dict[int, Float[Tensor, "batch pos head d_head"]]
    """By layer: the activation of each head, the input of the output projection."""
    final: Float[Tensor, "batch pos d_model"]
    """The final normed state, which the unembedding turns into logits."""
    residual: dict[int, Float[Tensor, "batch pos d_model"]]
    """By layer: the residual stream after it."""
    final_residual: Float[Tensor, "batch pos d_model"] | None
    """The input of the final norm."""
    attention: dict[int, Float[Tensor, "batch head query_pos key_pos"]]
    """By layer: the attention weights of the requested query positions."""


# One parameter too many for the house style: each selects what is kept, and most calls need one.
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
    """Run the base model once (no logits are computed) and keep the activations of its heads.

    Without gradients, but not in torch's inference mode: its tensors cannot be used to train a
    lens.

    Args:
        mask: True = a real token. With a ``cache`` it covers the cached positions too.
        layers: whose ``z`` (and ``residual``) to keep; all by default.
        positions: keep ``z`` and ``final`` at these positions of each row only; all by default.
        residual: keep the residual stream after each of ``layers``, and the input of the final
            norm.
        attention: layers whose attention weights to compute.
        attention_positions: the query positions to compute them for; all by default.
        cache: keys and values of earlier positions; this run's are appended.
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
        rows: dict[int, Tensor] = {}
        if attention:
            seen = [model.layer(i) for i in attention]
            rows = stack.enter_context(record_attention(model.hf, seen, attention_positions))
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
    """The output of each head alone: all other heads set to zero, then projected; no bias.

    Calling the module itself is right for Linear, Conv1D and quantised weights alike.
    The outputs sum to the output of the projection, minus its bias.
    """
    n_heads, d_head = z.shape[-2:]
    alone = torch.diag_embed(z.movedim(-1, -2)).movedim(-3, -1)  # [..., head, head, d_head]
    flat = alone.reshape(*z.shape[:-2], n_heads, n_heads * d_head)
    return layer.projection(flat) - projection_bias(layer, z)


@torch.no_grad()
def output_matrix(layer: HeadLayer) -> Float[Tensor, "head d_head d_model"]:
    """``W_O`` of each head: the matrix from its ``z`` to its output."""
    like = next((p for p in layer.projection.parameters() if p.is_floating_point()), None)
    units = torch.eye(layer.d_head)
    if like is not None:
        units = units.to(like.dtype)
        # Weights that accelerate keeps elsewhere show as "meta"; it moves the input itself.
        units = units if like.device.type == "meta" else units.to(like.device)
    alone = units[:, None].expand(-1, layer.n_heads, -1)  # [d_head, head, d_head]
    return head_outputs(layer, alone).transpose(0, 1)


def projection_bias(layer: HeadLayer, z: Tensor) -> Tensor:
    """The output of the projection when all heads are zero."""
    return layer.projection(z.new_zeros(1, layer.n_heads * layer.d_head))[0]


def _refuse_not_finite(final: Float[Tensor, "*token d_model"]) -> None:
    """The weights have been checked to be finite; activations on a text may still overflow."""
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
    # A copy, if not all is kept, so that the rest can be freed early.
    into[layer.index] = at_positions(activation, positions)
