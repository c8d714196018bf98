"""Text sampled from the model itself, so that lenses can be fitted without any data.

A model is good at what it was trained to continue. A model with a chat template answers requests
(``requests.txt``, of many topics and forms); another one continues its start token. Only what the
model writes is the text: the template and the request are context for sampling, and no part of the
rows. The rows are then read like those of any corpus, without the template.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from saccade.errors import ModelError, UsageError
from saccade.interp.heads.capture import run_base
from saccade.interp.heads.chat import has_chat_template
from saccade.interp.heads.model import LanguageModel
from saccade.interp.heads.onednn import fast_products
from saccade.interp.lenses.corpus import Corpus
from saccade.store.fingerprint import fingerprint_text

# Sampling reads one column at a time: short rows fit in memory, many rows use the hardware well.
WINDOW = 96
# The nucleus of Holtzman et al., 2020 (https://arxiv.org/abs/1904.09751): the tail of a small
# model's distribution is noise, and one draw from it derails the text that follows.
TOP_P = 0.95
# Tokens among which a nucleus is looked for first; sorting a whole vocabulary takes far longer.
_LIKELY = 256


def sample_batches(
    model: LanguageModel,
    *,
    n_tokens: int,
    window: int = 256,
    batch: int = 64,
    seed: int = 0,
    temperature: float = 1.0,
    top_p: float = TOP_P,
    skip_batches: int = 0,
) -> Iterator[Int[Tensor, "batch pos"]]:
    """Sample at least ``n_tokens`` tokens from the model, in batches of rows of ``window`` tokens.

    Ancestral sampling from the nucleus. Every row starts as the tokenizer starts a prompt. A model
    with a chat template then writes an answer to a request, without special tokens: it goes on
    where it would end its turn. Another model continues its BOS or end-of-text token, and goes on
    after an end of text, as documents follow each other in a corpus. Each batch has its own random
    numbers, so batch k does not depend on earlier batches.

    Args:
        n_tokens: rounded up to whole rows; the last batch has the remaining rows.
        batch: rows per batch. The keys and values of a batch stay in memory.
        top_p: the smallest set of tokens with this probability is drawn from; 1 for all tokens.
        skip_batches: number of batches to skip at the start.

    Example:
        >>> for ids in sample_batches(model, n_tokens=32_768):  # doctest: +SKIP
        ...     print(model.tokenizer.batch_decode(ids)[0])
    """
    rows = n_rows(model, n_tokens=n_tokens, window=window, batch=batch, temperature=temperature)
    if not 0 < top_p <= 1:
        raise UsageError(
            f"top_p must be above 0 and at most 1, got {top_p}", hint="1 for all tokens"
        )
    for index in range(skip_batches, math.ceil(rows / batch)):
        yield sample_batch(
            model,
            index=index,
            rows=min(batch, rows - index * batch),
            window=window,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
        )


def write_corpus(
    model: LanguageModel, *, n_tokens: int, window: int = WINDOW, seed: int = 0
) -> Corpus:
    """Text sampled from the model, as a corpus: to score lenses if no other text is available."""
    window = min(window, model.max_positions or window)
    batches = sample_batches(model, n_tokens=n_tokens, window=window, seed=seed)
    windows = torch.cat([ids.cpu() for ids in batches])
    assert model.tokenizer is not None, "a model that writes text has a tokenizer"
    text = model.tokenizer.batch_decode(windows, skip_special_tokens=True)
    fingerprint = fingerprint_text([windows.numpy().tobytes()])
    n_bytes = sum(len(row.encode()) for row in text)
    start = model.encoding.prefix if _chats(model, window) else _start_tokens(model)
    return Corpus("self", fingerprint, windows, n_bytes, n_prefix=len(start))


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
    model: LanguageModel,
    *,
    index: int,
    rows: int,
    window: int,
    seed: int,
    temperature: float = 1.0,
    top_p: float = TOP_P,
) -> Int[Tensor, "batch pos"]:
    """Sample batch ``index`` of `sample_batches`, for processes that share the work."""
    generator = torch.Generator().manual_seed(_batch_seed(seed, index))
    # Always drawn on the CPU, so that a batch does not depend on the device.
    chats = _chats(model, window)
    prompts = _some(chats, rows, generator) if chats else _starts(model, rows, generator)
    # The start token is a part of the row; a request is not, and BOS stands in its place.
    n_kept = 0 if chats else len(prompts[0])
    n_text = window - len(model.encoding.prefix) if chats else window
    barred = [each for each in model.encoding.special if each < model.d_vocab] if chats else []
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
    end, longest = int(lengths.min()), int(lengths.max())
    ids = torch.zeros(rows, longest - n_kept + n_text, dtype=torch.long)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt[: len(row)])
    ids = ids.to(model.device)
    uniform = torch.rand(ids.shape[1], rows, 1, generator=generator)
    past = _cache(model, ids.shape[1])
    start = 0
    while end < ids.shape[1]:
        logits = _next_logits(model, ids[:, start:end], past)
        if barred:  # an empty list is no index of a tensor
            logits[:, barred] = -math.inf
        if temperature != 1.0:  # over a whole vocabulary even a division costs time
            logits = logits / temperature
        token = draw(logits, uniform[end].to(logits.device), top_p=top_p).to(ids.device)
        # A row with a longer prompt is still reading it.
        ids[:, end] = torch.where(lengths > end, ids[:, end], token)
        start, end = end, end + 1
    column = lengths[:, None] - n_kept + torch.arange(n_text, device=ids.device)
    text = ids.gather(1, column)
    return model.encoding.with_prefix(text) if chats else text


def _next_logits(
    model: LanguageModel, ids: Int[Tensor, "batch pos"], past: DynamicCache
) -> Float[Tensor, "batch d_vocab"]:
    with fast_products():
        final = run_base(model.hf, ids, cache=past)[:, -1]
        logits = model.unembedding.logits(final).float()
    if not bool(final.isfinite().all()):
        raise ModelError(
            f"{model.name} gives values that are not finite for the text it writes",
            hint="open it with another dtype, such as float32 or bfloat16",
        )
    return logits


def draw(
    logits: Float[Tensor, "batch d_vocab"],
    uniform: Float[Tensor, "batch 1"],
    *,
    top_p: float = 1.0,
) -> Int[Tensor, " batch"]:
    """The token at which the cumulative probability passes each row's uniform number.

    ``torch.multinomial`` samples the same distribution, but draws a random number for every token
    of the vocabulary: with 49,152 tokens, sampling took about a third longer.

    Args:
        top_p: draw from the nucleus: the most likely tokens that together have this probability.

    >>> half = torch.log(torch.tensor([[0.5, 0.0, 0.5], [0.25, 0.75, 0.0]]))
    >>> draw(half, torch.tensor([[0.6], [0.2]]))
    tensor([2, 0])
    >>> draw(half, torch.tensor([[0.6], [0.2]]), top_p=0.7)
    tensor([2, 1])
    """
    p = logits.softmax(dim=-1)
    if top_p >= 1:
        return _passed(p, uniform)
    likely = p.topk(min(_LIKELY, p.shape[-1]), dim=-1)
    token = _of_nucleus(likely.values, likely.indices, uniform, top_p)
    if (wide := likely.values.sum(-1) < top_p).any():  # sorting costs a row ten times as much
        ordered = p[wide].sort(dim=-1, descending=True)
        token[wide] = _of_nucleus(ordered.values, ordered.indices, uniform[wide], top_p)
    return token


def _of_nucleus(
    p: Float[Tensor, "batch choice"],
    tokens: Int[Tensor, "batch choice"],
    uniform: Float[Tensor, "batch 1"],
    top_p: float,
) -> Int[Tensor, " batch"]:
    before = p.cumsum(dim=-1) - p
    return tokens.gather(1, _passed(p * (before < top_p), uniform)[:, None])[:, 0]


def _passed(
    p: Float[Tensor, "batch choice"], uniform: Float[Tensor, "batch 1"]
) -> Int[Tensor, " batch"]:
    # The sum is not exactly 1, so the uniform number is scaled by it.
    cumulative = p.cumsum(dim=-1)
    choice = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
    return choice.clamp_(max=p.shape[-1] - 1)


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


@functools.cache
def requests() -> tuple[str, ...]:
    """The requests that a model with a chat template answers."""
    lines = Path(__file__).with_name("requests.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line)


def sampling_fingerprint(model: LanguageModel, window: int) -> str:
    """Fingerprint of how rows are sampled: of the prompts that they continue, and the nucleus."""
    settings = (_chats(model, window), _start_tokens(model), TOP_P)
    return fingerprint_text([repr(settings).encode()])


def _chats(model: LanguageModel, window: int) -> list[list[int]]:
    """The requests through the chat template that leave room for a row; none without a template."""
    if not has_chat_template(model.tokenizer):
        return []
    most = math.inf if model.max_positions is None else model.max_positions - window
    try:
        found = [model.encode_chat(each).ids[0].tolist() for each in requests()]
    except UsageError:  # a template that a single message of a user does not fit
        return []
    return [each for each in found if len(each) <= most]


def _some(chats: list[list[int]], rows: int, generator: torch.Generator) -> list[list[int]]:
    """A request for each row; none a second time before all have been used."""
    turns = math.ceil(rows / len(chats))
    order = torch.cat([torch.randperm(len(chats), generator=generator) for _ in range(turns)])
    return [chats[int(each)] for each in order[:rows]]


def _starts(model: LanguageModel, rows: int, generator: torch.Generator) -> list[list[int]]:
    """The start tokens for each row, or an ordinary token drawn at random."""
    if start := _start_tokens(model):
        return [list(start)] * rows
    tokenizer: Any = model.tokenizer
    n_tokens = min(model.d_vocab, len(tokenizer)) if tokenizer is not None else model.d_vocab
    special = model.encoding.special
    tokens = torch.tensor([token for token in range(n_tokens) if token not in special])
    return tokens[torch.randint(len(tokens), (rows, 1), generator=generator)].tolist()


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
