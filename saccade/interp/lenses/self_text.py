"""Text sampled from the model itself, so that lenses can be fitted without any data.

The activations of the heads are captured in the sampling pass: no second pass is needed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from saccade.errors import UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.model import LanguageModel
from saccade.interp.heads.onednn import fast_products
from saccade.interp.lenses.corpus import Corpus
from saccade.store.fingerprint import fingerprint_text

# Sampling reads one column at a time: short rows fit in memory, many rows use the hardware well.
WINDOW = 96
# Counted up when a change of the code changes which text a model and a seed lead to.
SAMPLING = 1


class SampledBatch(NamedTuple):
    """Sampled text, and the model's activations after each token."""

    ids: Int[Tensor, "batch pos"]
    z: dict[int, Float[Tensor, "batch pos head d_head"]]
    """By layer: the activation of each head before the output projection."""
    final: Float[Tensor, "batch pos d_model"]
    """The final normed state."""


def sample_batches(
    model: LanguageModel,
    *,
    n_tokens: int,
    window: int = 256,
    batch: int = 64,
    seed: int = 0,
    temperature: float = 1.0,
    skip_batches: int = 0,
) -> Iterator[SampledBatch]:
    """Sample at least ``n_tokens`` tokens from the model, in batches of rows of ``window`` tokens.

    Plain ancestral sampling. Every row starts as the tokenizer starts a prompt, or with the model's
    BOS or end-of-text token if a prompt has no start token. After an end-of-text token the row
    continues, as documents follow each other in a corpus. Each batch has its own random numbers, so
    batch k does not depend on earlier batches.

    Args:
        n_tokens: rounded up to whole rows; the last batch has the remaining rows.
        batch: rows per batch. The keys, values and ``z`` of a batch stay in memory:
            ``batch * window`` times the sizes of all heads.
        skip_batches: number of batches to skip at the start.

    Example:
        >>> for ids, z, final in sample_batches(model, n_tokens=32_768):  # doctest: +SKIP
        ...     statistics.add(z, final)
    """
    rows = n_rows(model, n_tokens=n_tokens, window=window, batch=batch, temperature=temperature)
    for index in range(skip_batches, math.ceil(rows / batch)):
        yield sample_batch(
            model,
            index=index,
            rows=min(batch, rows - index * batch),
            window=window,
            seed=seed,
            temperature=temperature,
        )


def sampling_fingerprint(
    model: LanguageModel, *, rows: int, window: int, seed: int, temperature: float
) -> str:
    """Fingerprint how `sample_batch` samples, for caches of what is computed from the text.

    Not the model: two models of the same settings and first tokens have the same.
    """
    settings = [SAMPLING, rows, window, seed, temperature, str(model.hf.dtype)]
    first = [list(_start_tokens(model)), sorted(model.encoding.special)]
    return fingerprint_text([json.dumps([settings, first]).encode()])


def write_corpus(
    model: LanguageModel, *, n_tokens: int, window: int = WINDOW, seed: int = 0
) -> Corpus:
    """Text sampled from the model, as a corpus: to score lenses if no other text is available."""
    window = min(window, model.max_positions or window)
    batches = sample_batches(model, n_tokens=n_tokens, window=window, seed=seed)
    windows = torch.cat([batch.ids.cpu() for batch in batches])
    assert model.tokenizer is not None, "a model that writes text has a tokenizer"
    text = model.tokenizer.batch_decode(windows, skip_special_tokens=True)
    fingerprint = fingerprint_text([windows.numpy().tobytes()])
    n_bytes = sum(len(row.encode()) for row in text)
    return Corpus("self", fingerprint, windows, n_bytes, n_prefix=len(_start_tokens(model)))


def n_rows(
    model: LanguageModel, *, n_tokens: int, window: int, batch: int, temperature: float
) -> int:
    """Number of rows for ``n_tokens`` tokens; raises an error for invalid settings."""
    for name, value in (("n_tokens", n_tokens), ("window", window), ("batch", batch)):
        if value < 1:
            raise UsageError(
                f"{name} must be at least 1, got {value}", hint=f"give a larger {name}"
            )
    if model.max_positions is not None and window > model.max_positions:
        raise UsageError(
            f"a window of {window} tokens is longer than the model's context of "
            f"{model.max_positions}",
            hint=f"use a window of at most {model.max_positions}",
        )
    if not (temperature > 0 and math.isfinite(temperature)):
        raise UsageError(
            f"temperature must be a number above 0, got {temperature}",
            hint="1.0 samples from the model as it is",
        )
    return math.ceil(n_tokens / window)


@torch.inference_mode()
def sample_batch(
    model: LanguageModel, *, index: int, rows: int, window: int, seed: int, temperature: float
) -> SampledBatch:
    """Sample batch ``index`` of `sample_batches`, for processes that share the work."""
    generator = torch.Generator().manual_seed(_batch_seed(seed, index))
    # Always drawn on the CPU, so that a batch does not depend on the device.
    first = _first_columns(model, rows, generator)
    uniform = torch.rand(window, rows, 1, generator=generator)
    cache = _cache(model, window)
    ids = torch.empty(rows, window, dtype=torch.long, device=model.device)
    kept: dict[int, Tensor] = {}
    final: Tensor | None = None
    ids[:, : first.shape[1]] = first[:, :window].to(model.device)
    for step in range(window):
        with fast_products():
            activation = capture(model, ids[:, step : step + 1], cache=cache)
        for layer, z in activation.z.items():
            if step == 0:
                kept[layer] = z.new_empty(rows, window, *z.shape[2:])
            kept[layer][:, step] = z[:, 0]
        if final is None:
            final = activation.final.new_empty(rows, window, activation.final.shape[-1])
        final[:, step] = activation.final[:, 0]
        if first.shape[1] <= step + 1 < window:
            with fast_products():
                logits = model.unembedding.logits(activation.final[:, 0]).float()
            if temperature != 1.0:  # over a whole vocabulary even a division costs time
                logits = logits / temperature
            ids[:, step + 1] = draw(logits, uniform[step].to(logits.device)).to(ids.device)
    assert final is not None, "a window holds at least one column"
    return SampledBatch(ids, kept, final)


def draw(
    logits: Float[Tensor, "batch d_vocab"], uniform: Float[Tensor, "batch 1"]
) -> Int[Tensor, " batch"]:
    """The token at which the cumulative probability passes each row's uniform number.

    ``torch.multinomial`` samples the same distribution, but draws a random number for every token
    of the vocabulary: with 49,152 tokens, sampling took about a third longer.

    >>> half = torch.log(torch.tensor([[0.5, 0.0, 0.5], [0.25, 0.75, 0.0]]))
    >>> draw(half, torch.tensor([[0.6], [0.2]]))
    tensor([2, 0])
    """
    # The sum is not exactly 1, so the uniform number is scaled by it.
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)  # [batch, d_vocab]
    token = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
    return token.clamp_(max=logits.shape[-1] - 1)


def _batch_seed(seed: int, index: int) -> int:
    # Hashed, so that batch 1 of seed 0 is not batch 0 of seed 1.
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:4], "big")


def _start_tokens(model: LanguageModel) -> tuple[int, ...]:
    """The first tokens of every row; none for a tokenizer without such tokens."""
    if model.encoding.prefix:
        return model.encoding.prefix
    tokenizer: Any = model.tokenizer
    names = ("bos_token_id", "eos_token_id")
    found = (getattr(tokenizer, name, None) for name in names)
    return next(((int(start),) for start in found if start is not None), ())


def _first_columns(
    model: LanguageModel, rows: int, generator: torch.Generator
) -> Int[Tensor, "batch start"]:
    if start := _start_tokens(model):
        return torch.tensor(start).expand(rows, -1)
    tokenizer: Any = model.tokenizer
    n_tokens = min(model.d_vocab, len(tokenizer)) if tokenizer is not None else model.d_vocab
    special = model.encoding.special
    tokens = torch.tensor([token for token in range(n_tokens) if token not in special])
    return tokens[torch.randint(len(tokens), (rows, 1), generator=generator)]


class _RoomyLayer(DynamicLayer):
    """Keys and values in a preallocated buffer, where `DynamicLayer` copies them at each step.

    It has to inherit: transformers uses more of its cache layers than the methods below.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.length = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.all_keys, self.all_values = (
                new.new_empty(*new.shape[:-2], self.room, new.shape[-1])
                for new in (key_states, value_states)
            )
        start, self.length = self.length, self.length + key_states.shape[-2]
        self.all_keys[..., start : self.length, :] = key_states
        self.all_values[..., start : self.length, :] = value_states
        self.keys = self.all_keys[..., : self.length, :]
        self.values = self.all_values[..., : self.length, :]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.length


def _cache(model: LanguageModel, room: int) -> DynamicCache:
    cache = DynamicCache(config=model.hf.config)
    # Sliding-window and state-space layers keep the cache that transformers gives them.
    cache.layers = [_RoomyLayer(room) if type(at) is DynamicLayer else at for at in cache.layers]
    return cache
