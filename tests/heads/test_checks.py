"""Models whose heads cannot be told apart, or of another kind, are refused with the reason."""

from __future__ import annotations

import pytest
import torch
from families import build, tiny
from torch import nn
from transformers import BertConfig, OPTConfig, T5Config, T5ForConditionalGeneration

from saccade.errors import ModelError
from saccade.heads import capture, direct_logits, wrap_model

SMALL = {"vocab_size": 101, "hidden_size": 42, "num_attention_heads": 3, "num_hidden_layers": 2}


def test_bitnet_mixes_its_heads_before_the_projection():
    with pytest.raises(ModelError) as error:
        wrap_model(tiny("bitnet"), None, name="bitnet")
    assert "o_proj does not read separate heads" in str(error.value)
    assert "16 features of v_proj move heads 0, 1, 2, 3, 4, 5 together" in str(error.value)
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
    with pytest.raises(ModelError, match="head 0 should move with the values of its attention"):
        wrap_model(hf, None, name="silent")


def test_a_projection_that_is_not_linear_is_refused():
    hf = build(tiny("llama").config)
    projection = hf.model.layers[1].self_attn.o_proj
    projection.register_forward_hook(lambda _, __, output: output * output)
    with pytest.raises(
        ModelError, match="6 heads should sum to what it writes, but they differ by"
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
    with pytest.raises(ModelError, match="no direct path to the words"):
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
