"""Run the base model: everything but the unembedding."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

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
