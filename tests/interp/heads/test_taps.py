"""Which modules are found, and what is refused."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, LAYERS, build, tiny
from torch import nn
from transformers import LlamaConfig, MambaConfig

from saccade.errors import ModelError
from saccade.interp.heads.model import wrap_model
from saccade.interp.heads.taps import find_taps

PROMISED = [
    *["gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "bloom", "llama", "mistral", "mixtral"],
    *["qwen2", "qwen3", "gemma2", "gemma3_text", "phi", "phi3", "falcon", "olmo2", "cohere"],
    *["granite", "stablelm", "starcoder2"],
]


def test_every_promised_family_is_tried():
    assert set(PROMISED) <= set(FAMILIES)


def test_every_layer_has_its_heads(model):
    n_layers = model.hf.config.num_hidden_layers
    assert [layer.index for layer in model.layers] == list(range(n_layers))
    for layer in model.layers:
        assert layer.n_heads == model.hf.config.num_attention_heads
        assert model.hf.get_submodule(layer.path) is layer.projection


def test_the_head_size_is_the_layers_own_and_not_d_model_over_heads(wrapped):
    model = wrapped("qwen3")
    assert {(layer.n_heads, layer.d_head) for layer in model.layers} == {(6, 10)}
    assert model.d_model == 48


def test_head_sizes_may_differ_from_layer_to_layer(ids):
    hf = build(tiny("llama").config)
    attention = hf.model.layers[1].self_attn
    wide = type(attention)(_with_head_size(hf.config, 14), layer_idx=1)
    # Rotary positions are made for one head size; without them any size goes.
    wide.forward = _forward_without_positions(wide)
    hf.model.layers[1].self_attn = wide
    model = wrap_model(hf, None, name="uneven")
    assert [layer.d_head for layer in model.layers] == [10, 14, 10]


def _with_head_size(config: LlamaConfig, size: int) -> LlamaConfig:
    other = LlamaConfig.from_dict({**config.to_dict(), "head_dim": size})
    other._attn_implementation = "sdpa"
    return other


def _forward_without_positions(attention: nn.Module):
    def forward(hidden_states, position_embeddings, **kwargs):
        sin = torch.zeros(1, hidden_states.shape[1], attention.head_dim)
        return type(attention).forward(attention, hidden_states, (sin + 1, sin), **kwargs)

    return forward


@pytest.mark.parametrize(
    ("family", "multiplier"), [("granite", 0.29), ("llama", 1.0), ("gptj", 1.0), ("falcon", 1.0)]
)
def test_the_residual_multiplier_is_found(wrapped, family, multiplier):
    assert {layer.multiplier for layer in wrapped(family).layers} == {multiplier}


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "olmo2"])
def test_a_norm_after_attention_is_found(wrapped, family):
    for layer in wrapped(family).layers:
        assert layer.post_norm.module is layer.block.post_attention_layernorm


def test_other_families_have_no_norm_after_attention(wrapped):
    for family in set(FAMILIES) - {"gemma2", "gemma3_text", "olmo2"}:
        assert all(layer.post_norm is None for layer in wrapped(family).layers), family


def test_a_pattern_takes_the_place_of_the_rule():
    found = find_taps(tiny("llama"), r"model\.layers\.[02]\.self_attn\.o_proj")
    assert [layer.index for layer in found] == [0, 2]


def test_a_pattern_that_matches_nothing_is_named():
    with pytest.raises(ModelError, match=r"no attention heads in this llama .* 'nowhere'") as error:
        find_taps(tiny("llama"), "nowhere")
    assert "taps" in error.value.hint


def test_a_pattern_that_matches_twice_in_a_layer_is_refused():
    with pytest.raises(ModelError, match="layer 0 has more than one output projection"):
        find_taps(tiny("llama"), r"model\.layers\.\d+\.self_attn\.[vo]_proj")


def test_a_pattern_for_something_else_than_a_linear_map_is_refused():
    with pytest.raises(ModelError, match=r"layers\.0\.self_attn is a LlamaAttention"):
        find_taps(tiny("llama"), r"model\.layers\.\d+\.self_attn")


def test_a_pattern_outside_the_layers_is_refused():
    with pytest.raises(ModelError, match="lm_head is not inside a numbered decoder layer"):
        find_taps(tiny("llama"), "lm_head")


def test_a_model_without_attention_is_refused():
    config = MambaConfig(hidden_size=24, num_hidden_layers=LAYERS, vocab_size=101)
    with pytest.raises(ModelError, match="no attention heads in this mamba model"):
        wrap_model(build(config), None, name="mamba")


def test_a_layer_that_counts_no_heads_leaves_the_token_to_the_config():
    hf = build(tiny("llama").config)
    for layer in hf.model.layers:
        layer.self_attn.num_heads = 0
    assert [layer.n_heads for layer in find_taps(hf)] == [6, 6, 6]
