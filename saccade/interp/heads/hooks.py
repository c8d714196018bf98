"""Hooks that are gone when their ``with`` block ends, whatever happens inside.

They are made for every layer of every run. Functions inside functions would do, but under the
tests' checker of shapes each of them is compiled anew: hooks are partial functions instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import Cache, PreTrainedModel

from saccade.interp.heads.taps import HeadLayer


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
    """What to give `on_input` or `on_output` to find the last tensor in a dict."""
    return partial(_keep_tensor, into, key)


def _keep_tensor(into: dict[Any, Tensor], key: Any, tensor: Any) -> None:
    if isinstance(tensor, Tensor):
        into[key] = tensor


def added_to(module: nn.Module, amount: Tensor) -> RemovableHandle:
    """Add ``amount`` to whatever the module writes."""
    return module.register_forward_hook(partial(_add, amount))


def _add(amount: Tensor, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
    return output + amount.to(output).view(output.shape)


# Run the base model: everything but the unembedding.

# How far two ways to compute the same thing may differ, relative to the largest number in it.
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
    """The final normed state at every position; no logits are made.

    Args:
        mask: True = a real token. With a ``cache`` it covers the cached positions too.
        cache: keys and values of earlier positions; it grows by this run's.
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
    """Run the model until ``module`` is done: what comes after it is not computed."""

    def stop(*_: Any) -> None:
        raise _DoneError

    with module.register_forward_hook(stop), suppress(_DoneError):
        run_base(hf, input_ids)


class _DoneError(Exception):
    """Leaves a run that has shown what was wanted."""


def base_of(hf: PreTrainedModel) -> nn.Module:
    """The model without its unembedding."""
    if (base := hf.base_model) is not hf:
        return base
    # Some classes (Llama 4's text model) do not name their base; it is the model inside.
    return next((child for child in hf.children() if isinstance(child, PreTrainedModel)), hf)


def input_device(hf: PreTrainedModel) -> torch.device:
    """Where the ids of a text have to be."""
    device = _input_weight(hf).device
    # Weights that accelerate keeps elsewhere show as "meta"; it moves the ids itself.
    return torch.device("cpu") if device.type == "meta" else device


def _input_weight(hf: PreTrainedModel) -> Tensor:
    weight = hf.get_input_embeddings().weight
    assert isinstance(weight, Tensor), "an input embedding is a matrix"
    return weight


def n_embedded(hf: PreTrainedModel) -> int:
    """How many ids of tokens the model can read."""
    return int(_input_weight(hf).shape[0])


def trial_ids(hf: PreTrainedModel) -> Int[Tensor, "2 5"]:
    """Two short rows of words to try a model with; they differ in the last word only."""
    n_words = n_embedded(hf)
    # From the middle of the vocabulary, away from padding and other special words.
    start = max(0, min(n_words // 2, n_words - 6))
    row = [start, start + 2, start + 1, start + 3]
    return torch.tensor([[*row, start + 4], [*row, start + 5]]) % n_words


def agree(a: Tensor, b: Tensor, *, dtype: torch.dtype, slack: float = 1.0) -> bool:
    """Whether two ways to compute something gave the same, up to the rounding of ``dtype``."""
    return worst(a, b) <= TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16]) * slack


def worst(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number.

    >>> round(worst(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 3.0])), 3)
    0.25
    """
    largest = max(float(a.abs().max()), float(b.abs().max()), 1e-30)
    return float((a.float() - b.float().to(a.device)).abs().max()) / largest


# One short run of a model that is being opened, for all the checks to look at.


@dataclass(frozen=True)
class Trial:
    """What a model does with two short rows of words that differ in the last one only."""

    final: Float[Tensor, "batch pos d_model"]
    """What the base model gives."""
    logits: Float[Tensor, "batch pos d_vocab"]
    """What the whole model gives, in a run of its own."""
    reads: dict[int, Tensor]
    """By layer: what went into the output projection."""
    writes: dict[int, Tensor]
    """By layer: what came out of it."""
    outside: dict[str, Tensor]
    """By path, in order of the modules: outputs of what belongs to no layer."""
    last_block: Tensor
    """What came out of the last layer."""

    def probe(self) -> tuple[float, ...]:
        """The entropy of the prediction at each position of the first row, in nats."""
        log_p = self.logits[0].float().log_softmax(-1)  # [pos, d_vocab]
        entropy = -(log_p.exp() * log_p).sum(-1)
        return tuple(round(float(each), 6) for each in entropy)


@torch.no_grad()
def try_model(hf: PreTrainedModel, layers: Sequence[HeadLayer]) -> Trial:
    """Run a model twice on a short text: its base, watched, and then the whole of it."""
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
