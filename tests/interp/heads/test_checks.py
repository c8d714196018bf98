"""Models whose heads cannot be told apart, or of another kind, are refused with the reason."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from families import FAMILIES, POSITIONS, VOCAB, build, tiny
from torch import nn
from transformers import (
    AutoConfig,
    BertConfig,
    OPTConfig,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from saccade.errors import ModelError
from saccade.interp.heads.capture import capture, try_model
from saccade.interp.heads.checks import check_logits
from saccade.interp.heads.model import wrap_model
from saccade.interp.heads.residual_path import direct_logits, find_unembedding
from saccade.interp.heads.taps import find_taps

SMALL = {"vocab_size": 101, "hidden_size": 42, "num_attention_heads": 3, "num_hidden_layers": 2}


def test_bitnet_mixes_its_heads_before_the_projection():
    with pytest.raises(ModelError) as error:
        wrap_model(tiny("bitnet"), None, name="bitnet")
    assert "o_proj does not read separate heads" in str(error.value)
    assert "16 features of v_proj change heads 0, 1, 2, 3, 4, 5 together" in str(error.value)
    assert "attn_sub_norm" in str(error.value)
    assert "`taps`" in error.value.hint


def test_diffllama_pairs_its_heads():
    with pytest.raises(ModelError) as error:
        wrap_model(tiny("diffllama"), None, name="diffllama")
    assert "o_proj does not read separate heads" in str(error.value)
    assert "values of one value head, but 24 features of v_proj" in str(error.value)


def test_explicit_taps_are_taken_on_trust():
    pattern = r"model\.layers\.\d+\.self_attn\.o_proj"
    assert wrap_model(tiny("bitnet"), None, name="bitnet", taps=pattern).n_layers == 3


def test_heads_that_no_value_moves_are_refused():
    hf = build(tiny("llama").config)
    projection = hf.model.layers[0].self_attn.o_proj
    projection.register_forward_pre_hook(lambda _, args: torch.zeros_like(args[0]))
    with pytest.raises(ModelError, match="head 0 should change with the values of its attention"):
        wrap_model(hf, None, name="silent")


def test_a_projection_that_is_not_linear_is_refused():
    hf = build(tiny("llama").config)
    projection = hf.model.layers[1].self_attn.o_proj
    projection.register_forward_hook(lambda _, __, output: output * output)
    with pytest.raises(
        ModelError, match="6 heads should sum to its output, but they differ by"
    ):
        wrap_model(hf, None, name="squared")


def test_logits_that_are_not_the_unembedded_final_state_are_refused():
    hf = build(tiny("llama").config)
    hf.lm_head.register_forward_hook(lambda _, __, output: output.roll(1, -1))
    with pytest.raises(
        ModelError, match="final state of this llama model does not give its logits"
    ):
        wrap_model(hf, None, name="rolled")


def test_a_scale_that_no_config_names_is_measured():
    hf = build(tiny("llama").config)
    hf.lm_head.register_forward_hook(lambda _, __, output: output * 0.61)
    assert wrap_model(hf, None, name="scaled").unembedding.scale == pytest.approx(0.61, rel=1e-5)


def test_an_encoder_is_refused():
    hf = build(BertConfig(**SMALL, intermediate_size=53))
    with pytest.raises(ModelError, match="this bert model is not causal") as error:
        wrap_model(hf, None, name="bert")
    assert "decoder-only" in error.value.hint


def test_a_model_that_looks_one_token_ahead_is_refused():
    hf = build(tiny("llama").config)
    hf.model.norm.register_forward_hook(
        lambda _, __, output: output + torch.cat([output[:, 1:], output[:, -1:]], 1)
    )
    with pytest.raises(ModelError, match="this llama model is not causal"):
        wrap_model(hf, None, name="ahead")


def test_logits_of_another_shape_than_the_unembedding_gives_are_refused():
    hf = build(tiny("llama").config).requires_grad_(requires_grad=False)
    trial = try_model(hf, find_taps(hf))
    found = find_unembedding(hf, trial)
    check_logits(hf, found, trial)
    same = replace(found, weight=found.weight[:1])
    with pytest.raises(ModelError, match="does not give its logits"):
        check_logits(hf, same, replace(trial, logits=same.logits(trial.final).expand(-1, -1, 5)))


def test_an_encoder_decoder_is_refused():
    config = T5Config(vocab_size=101, d_model=24, d_kv=8, d_ff=32, num_layers=1, num_heads=3)
    with pytest.raises(ModelError, match=r"tiny-t5 is an encoder-decoder model \(t5\)"):
        wrap_model(T5ForConditionalGeneration(config), None, name="tiny-t5")


def test_a_stream_that_is_projected_before_it_is_unembedded_is_refused():
    config = OPTConfig(**SMALL, ffn_dim=53, word_embed_proj_dim=26, do_layer_norm_before=False)
    with pytest.raises(ModelError, match=r"goes through decoder\.project_out, a linear map"):
        wrap_model(build(config), None, name="opt-350m")


def test_heads_without_a_direct_path_can_be_read_but_not_attributed(ids):
    config = OPTConfig(**SMALL, ffn_dim=53, word_embed_proj_dim=42, do_layer_norm_before=False)
    model = wrap_model(build(config), None, name="post-norm")
    assert isinstance(model.final_norm.module, nn.Identity)
    captured = capture(model, ids, residual=True)
    with pytest.raises(ModelError, match="no direct path to the tokens"):
        direct_logits(model, captured, 0, ids)


def test_half_precision_models_pass(ids):
    hf = build(tiny("llama").config).to(torch.bfloat16)
    model = wrap_model(hf, None, name="half")
    assert capture(model, ids).z[0].dtype == torch.bfloat16


def test_the_model_is_left_without_hooks_and_gradients(model):
    assert not model.hf.training
    assert not any(weight.requires_grad for weight in model.hf.parameters())


def test_a_refused_model_keeps_no_hook():
    hf = tiny("bitnet")
    with pytest.raises(ModelError):
        wrap_model(hf, None, name="bitnet")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in hf.modules())


def changed_attention(module, *args, **kwargs):
    """torch's attention, with the heads' outputs changed as the module says."""
    heads, weights = sdpa_attention_forward(module, *args, **kwargs)
    return module.change(heads), weights


def changed_before_the_projection(change, family="llama", layers=(0, 1, 2)):
    """A model whose heads' outputs, [..., head, feature], are changed before they are projected."""
    AttentionInterface.register("changed", changed_attention)
    AttentionMaskInterface.register("changed", sdpa_mask)
    hf = build(copy.deepcopy(tiny(family).config), "changed")
    for index, layer in enumerate(hf.model.layers):
        layer.self_attn.change = change if index in layers else lambda z: z
    return hf


# Heads 0-2 read one value head, 3-5 the other.
APART = {
    "negated": lambda z: -z,
    "tiny": lambda z: 1e-7 * z,
    "one feature silent": lambda z: z * (torch.arange(10) > 0),
    "one feature alone": lambda z: z * (torch.arange(10) == 9),
    "rounded into each other": lambda z: z + 1e-5 * z.sum(-2, keepdim=True),
    "large and rounded into each other": lambda z: 1e3 * z + 1e-2 * z.sum(-2, keepdim=True),
    "the first read by all": lambda z: z + z[..., :1, :],
}
MIXED = {
    "each with its neighbour": lambda z: z + z.roll(1, -2),
    "one norm over all": lambda z: z / z.square().mean((-2, -1), keepdim=True).sqrt(),
    "the sum in one": lambda z: torch.cat([z[..., :5, :], z.sum(-2, keepdim=True)], -2),
}


@pytest.mark.parametrize("change", APART.values(), ids=APART)
def test_heads_that_keep_their_values_apart_pass(change):
    model = wrap_model(changed_before_the_projection(change), None, name="apart")
    assert [(layer.n_heads, layer.d_head) for layer in model.layers] == [(6, 10)] * 3


@pytest.mark.parametrize("change", MIXED.values(), ids=MIXED)
def test_heads_that_mix_their_values_are_refused(change):
    with pytest.raises(ModelError, match=r"separate heads.*change heads .* together$"):
        wrap_model(changed_before_the_projection(change), None, name="mixed")


@pytest.mark.parametrize("size", [1e-3, 1e5])
def test_heads_mixed_by_a_norm_are_refused_whatever_the_size_of_their_values(size):
    hf = changed_before_the_projection(MIXED["one norm over all"])
    for layer in hf.model.layers:
        layer.self_attn.v_proj.weight.data *= size
        layer.self_attn.v_proj.weight.data[0] = 0.0  # and one that is always 0 among them
    with pytest.raises(ModelError, match="does not read separate heads"):
        wrap_model(hf, None, name="mixed")


@pytest.mark.parametrize("value", [0.0, 0.25, -0.25, -3.0])
def test_values_that_are_the_same_for_every_token_are_values(value):
    hf = build(tiny("llama-biased").config)
    for layer in hf.model.layers:
        layer.self_attn.v_proj.weight.data.zero_()
        layer.self_attn.v_proj.bias.data.fill_(value)
    assert wrap_model(hf, None, name="baseline").n_heads == 18


def test_one_mixed_layer_of_a_kind_of_its_own_is_found():
    hf = changed_before_the_projection(MIXED["each with its neighbour"], layers=[2])
    hf.model.layers[2].self_attn.spare = nn.Linear(3, 5)  # another kind of layer; it is not used
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn\.o_proj does not read separate"):
        wrap_model(hf, None, name="spare")


def test_a_linear_map_that_the_attention_does_not_use_does_not_matter():
    hf = build(tiny("llama").config)
    hf.model.layers[2].self_attn.spare = nn.Linear(3, 5)
    assert wrap_model(hf, None, name="spare").n_layers == 3


def test_opening_takes_as_many_runs_of_a_deep_model_as_of_a_shallow_one():
    def runs(n_layers: int) -> int:
        settings = {**FAMILIES["llama"], "num_hidden_layers": n_layers, "vocab_size": VOCAB}
        hf, seen = build(AutoConfig.for_model("llama", **settings)), []
        hf.get_input_embeddings().register_forward_hook(lambda *_: seen.append(None))
        wrap_model(hf, None, name="llama")
        return len(seen)

    assert runs(7) == runs(2)


@pytest.mark.parametrize("q_rank", [None, 14], ids=["queries", "latent queries"])
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_values_that_come_from_a_latent_beside_keys_are_told_apart(q_rank, size, ids):
    # DeepSeek: keys of 6 and values of 4 by turns in one map, which reads a latent of 9.
    latent = {
        "hidden_size": 48,
        "intermediate_size": 53,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 2,
        "q_lora_rank": q_rank,
        "kv_lora_rank": 9,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 4,
        "max_position_embeddings": POSITIONS,
        "vocab_size": VOCAB,
    }
    hf = build(AutoConfig.for_model("deepseek_v3", **latent))
    for layer in hf.model.layers:
        layer.self_attn.kv_b_proj.weight.data *= size
    model = wrap_model(hf, None, name="latent")
    assert [(layer.n_heads, layer.d_head) for layer in model.layers] == [(6, 4)] * 2
    assert capture(model, ids).z[1].shape == (*ids.shape, 6, 4)


def test_a_projection_that_does_not_run_is_refused():
    hf = build(tiny("llama").config)
    hf.model.layers[1].self_attn.wo = nn.Linear(60, 48)
    pattern = r"model\.layers\.([02]\.self_attn\.o_proj|1\.self_attn\.wo)"
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.wo was not used") as error:
        wrap_model(hf, None, name="unused", taps=pattern)
    assert "`taps`" in error.value.hint
