"""Tiny random models of many families, built from their configs: nothing is downloaded.

Sizes are distinct wherever the family allows it, so that a swapped axis cannot pass by luck.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

LAYERS, VOCAB, POSITIONS = 3, 101, 61

# 6 query heads of 10 on 2 key-value heads: 60 features in all, which is not d_model.
GROUPED: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 53,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": POSITIONS,
}
# Families without a head size of their own: 3 heads of 14.
PLAIN = {**GROUPED, "hidden_size": 42, "num_attention_heads": 3}
PLAIN = {
    key: value for key, value in PLAIN.items() if key not in {"head_dim", "num_key_value_heads"}
}
# The same with grouped key-value heads: 6 query heads of 8 on 2.
SHARED = {key: value for key, value in GROUPED.items() if key != "head_dim"}
GPT = {"n_embd": 42, "n_head": 3, "n_layer": LAYERS, "n_positions": POSITIONS}
WINDOW = {"sliding_window": 5}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "gpt_neo": {
        "hidden_size": 42,
        "num_heads": 3,
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 5,
        "max_position_embeddings": POSITIONS,
    },
    "gptj": {**GPT, "rotary_dim": 4},
    "gpt_neox": {**PLAIN, "use_parallel_residual": True},
    "gpt_neox-sequential": {**PLAIN, "use_parallel_residual": False},
    "opt": {**PLAIN, "ffn_dim": 53, "word_embed_proj_dim": 42},
    "bloom": {"hidden_size": 42, "n_head": 3, "n_layer": LAYERS},
    "llama": GROUPED,
    "llama-biased": {**GROUPED, "attention_bias": True},
    "mistral": {**GROUPED, **WINDOW},
    # Its grouped matrix product wants rows of whole 16 bytes.
    "mixtral": {
        **GROUPED,
        "intermediate_size": 52,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
    },
    "qwen2": SHARED,
    "qwen3": GROUPED,
    "gemma2": {
        **GROUPED,
        **WINDOW,
        "query_pre_attn_scalar": 10,
        "final_logit_softcapping": 0.7,
        "attn_logit_softcapping": 1.3,
        "layer_types": KINDS,
    },
    "gemma3_text": {**GROUPED, **WINDOW, "query_pre_attn_scalar": 10, "layer_types": KINDS},
    "phi": {**SHARED, "partial_rotary_factor": 0.5},
    "phi3": {**SHARED, "pad_token_id": 0},
    "falcon": {
        **PLAIN,
        "multi_query": True,
        "parallel_attn": True,
        "new_decoder_architecture": False,
        "alibi": False,
    },
    "falcon-grouped": {
        **PLAIN,
        "hidden_size": 48,
        "num_attention_heads": 6,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "alibi": False,
    },
    "falcon-alibi": {
        **PLAIN,
        "multi_query": False,
        "parallel_attn": False,
        "new_decoder_architecture": False,
        "alibi": True,
    },
    "olmo2": SHARED,
    "cohere": {**GROUPED, "logit_scale": 0.37, "use_qk_norm": False},
    "granite": {
        **SHARED,
        "residual_multiplier": 0.29,
        "logits_scaling": 3.7,
        "attention_multiplier": 0.19,
        "embedding_multiplier": 2.3,
    },
    "stablelm": {**SHARED, "partial_rotary_factor": 0.5},
    "stablelm-parallel": {**SHARED, "partial_rotary_factor": 0.5, "use_parallel_residual": True},
    "starcoder2": SHARED,
}
REFUSED: dict[str, dict[str, Any]] = {
    "bitnet": SHARED,
    "diffllama": {**SHARED, "num_attention_heads": 4},
}


@cache
def tiny(family: str, attention: str | None = None) -> PreTrainedModel:
    """The tiny random model of a family, the same one each time (do not change it)."""
    settings = FAMILIES.get(family) or REFUSED[family]
    config = AutoConfig.for_model(
        family.partition("-")[0],
        **{"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, **settings},
    )
    return build(config, attention)


def build(config: Any, attention: str | None = None) -> PreTrainedModel:
    """A random model with weights large enough that every part of it matters."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            generator = torch.Generator().manual_seed(len(name) * 7919 + weight.numel())
            # Norm gains near 1 and biases near 0 would hide a wrong treatment of them.
            size = 0.5 if weight.dim() == 1 else 1.5 / weight.shape[-1] ** 0.5
            offset = 1.0 if weight.dim() == 1 and name.endswith("weight") else 0.0
            weight.copy_(offset + size * torch.randn(weight.shape, generator=generator))
    return model.eval()
