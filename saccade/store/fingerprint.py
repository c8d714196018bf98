"""Fingerprints of what a lens was fitted on: a model, a tokenizer, a text.

Each is the first 16 hex digits of a sha256: enough to tell things apart, not a protection against
a deliberate collision.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_DIGITS = 16
# Parts of a model's config that do not change what it computes: its origin, how it is loaded and
# what it is used for. The dtype is among them, so that a float32 and a bfloat16 load of one
# checkpoint agree.
_NOT_COMPUTED = frozenset(
    {
        *("_name_or_path", "name_or_path", "transformers_version", "architectures", "auto_map"),
        *("dtype", "torch_dtype", "quantization_config", "use_cache", "return_dict"),
        *("output_attentions", "output_hidden_states", "gradient_checkpointing", "is_decoder"),
        *("attn_implementation", "_attn_implementation_autoset", "_attn_implementation"),
        *("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"),
        *("initializer_range", "tokenizer_class", "pretraining_tp"),
    }
)
# Values sampled per parameter: a fraction of a second for the default model's 272 tensors.
_SAMPLES = 1024


def fingerprint_text(chunks: Iterable[bytes]) -> str:
    """Fingerprint the bytes of a text; how it is split into chunks makes no difference.

    >>> fingerprint_text([b"the cat ", b"sat"]) == fingerprint_text([b"the ", b"cat sat"])
    True
    >>> fingerprint_text([b"the cat sat"])
    '77255f02a3435d1f'
    """
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()[:_DIGITS]


def fingerprint_tokenizer(tokenizer: Any) -> str:
    """Fingerprint how a Hugging Face tokenizer splits text, whichever class it was loaded as.

    Hashed: the vocabulary, the special tokens and the backend's own description (what
    ``tokenizer.json`` holds), without the padding and truncation settings, which calls change.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(backend.to_str()) if backend is not None else {}
    for setting in ("padding", "truncation"):
        rules.pop(setting, None)
    description = {
        "vocab": tokenizer.get_vocab(),
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "rules": rules,
    }
    return fingerprint_text([json.dumps(description, sort_keys=True).encode()])


def fingerprint_model(hf_model: nn.Module) -> str:
    """Fingerprint what a Hugging Face model computes: its config and a sample of its weights.

    Hashed: the settings of the config that decide the computation (the base of rotary positions,
    the epsilon of norms, the activation function and all others that differ from the defaults of
    the model type), and for each parameter its name, shape and at most 1024 of its values, rounded
    to bfloat16 so that a float32 and a bfloat16 load of one checkpoint agree (a float16 load does
    not: it is rounded differently). Tied parameters count once. A change of a few single values
    can go undetected.
    """
    digest = hashlib.sha256(_computation(getattr(hf_model, "config", None)))
    for name, parameter in sorted(_own_parameters(hf_model)):
        digest.update(f"\n{name} {tuple(parameter.shape)} ".encode())
        digest.update(_sample(parameter))
    return digest.hexdigest()[:_DIGITS]


def _computation(config: Any) -> bytes:
    """The settings of a config that decide the computation, independent of their order.

    Only those that differ from the defaults: a new version of transformers adds settings to a
    config, and their defaults do not change the computation.
    """
    if config is None:
        return b""
    try:
        usual = type(config)().to_dict()
    except (TypeError, ValueError, AttributeError, KeyError):  # some cannot be built from defaults
        usual = {}
    changed = {k: v for k, v in config.to_dict().items() if k not in usual or usual[k] != v}
    text = json.dumps(_pruned(changed), sort_keys=True, default=str)
    return f"{config.model_type} {text}".encode()


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _pruned(v) for k, v in value.items() if k not in _NOT_COMPUTED}
    return value


def _own_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    # Weights that accelerate has moved off the device are separate placeholders, so tied ones
    # cannot be recognised by identity alone.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    for name, parameter in model.named_parameters():
        if name in tied:
            continue
        yield name, _offloaded(model, name) if parameter.is_meta else parameter.detach()


def _offloaded(model: nn.Module, name: str) -> Tensor:
    """The values behind a placeholder that accelerate left on the meta device."""
    owner, _, leaf = name.rpartition(".")
    hook = getattr(model.get_submodule(owner), "_hf_hook", None)
    hooks = [hook, *getattr(hook, "hooks", ())]
    for weights in (getattr(each, "weights_map", None) for each in hooks):
        if weights is not None:
            return weights[leaf]
    raise AssertionError(f"parameter {name} is on the meta device and has no values")


def _sample(parameter: Tensor) -> bytes:
    """At most 1024 values spread over the tensor, as little-endian bfloat16.

    Only these are copied.
    """
    count = parameter.numel()
    if count == 0:
        return b""
    # A step that shares no factor with the size visits every row and column in turn; a plain
    # size / 1024 would stay within a single column of a matrix whose sides are powers of two.
    step = math.ceil(count / _SAMPLES)
    while math.gcd(step, count) != 1:
        step += 1
    flat = torch.arange(0, count, step, device=parameter.device)
    # Indexing axis by axis works for any layout, where flattening might copy the whole tensor.
    values = parameter[torch.unravel_index(flat, parameter.shape)] if parameter.dim() else parameter
    return values.to(torch.bfloat16).view(torch.int16).cpu().numpy().astype("<i2").tobytes()
