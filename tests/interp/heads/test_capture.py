"""Judged against Hugging Face's own outputs, and against laws that heads obey."""

from __future__ import annotations

import pytest
import torch
from families import tiny
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AttentionInterface, DynamicCache
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from saccade.errors import ModelError, UsageError
from saccade.interp.heads.capture import capture, head_outputs, output_matrix
from saccade.interp.heads.model import LanguageModel, wrap_model
from saccade.interp.heads.residual_path import direct_logits

# float32 sums in another order; the numbers are of size 1.
CLOSE = {"atol": 2e-5, "rtol": 2e-4}


def n_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def what_attention_added(model: LanguageModel, layer: int, ids: Tensor) -> Tensor:
    """By brute force: how the final residual stream's own sum changes without this attention.

    The block is run alone on what it got, once as it is and once with its projection silenced; in
    a parallel block the difference is what attention added, in a sequential one it is read where
    the feed-forward part reads the stream.
    """
    at = model.layer(layer)
    name = FEED_FORWARD_READS.get(model.name)
    inputs: dict[str, Tensor] = {}
    site = at.block if name is None else at.block.get_submodule(name)

    def keep_input(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs["at"] = args[0].reshape(*ids.shape, -1).clone()

    def keep_output(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        inputs["at"] = (output if isinstance(output, Tensor) else output[0]).clone()

    def silence(_: nn.Module, __: object, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    handle = (
        site.register_forward_hook(keep_output)
        if name is None
        else site.register_forward_pre_hook(keep_input)
    )
    with handle, torch.inference_mode():
        model.hf(input_ids=ids)
        whole = inputs["at"]
        with at.projection.register_forward_hook(silence):
            model.hf(input_ids=ids)
        return whole - inputs["at"]


# Where the feed-forward part of a sequential block reads the stream; parallel blocks have none.
FEED_FORWARD_READS = {
    **dict.fromkeys(["gpt2", "gpt_neo"], "ln_2"),
    **dict.fromkeys(["gemma2", "gemma3_text"], "pre_feedforward_layernorm"),
    "opt": "final_layer_norm",
    "olmo2": "mlp",
    **dict.fromkeys(
        [
            *["gpt_neox-sequential", "bloom", "llama", "llama-biased", "mistral", "mixtral"],
            *["qwen2", "qwen3", "phi3", "falcon-alibi", "granite", "stablelm", "starcoder2"],
        ],
        "post_attention_layernorm",
    ),
}


def test_the_heads_sum_to_what_the_projection_writes(model, ids):
    captured = capture(model, ids)
    for layer in model.layers:
        z = captured.z[layer.index]
        assert z.shape == (*ids.shape, layer.n_heads, layer.d_head)
        silent = layer.projection(torch.zeros_like(z.flatten(-2)))
        found = head_outputs(layer, z).sum(-2) + silent
        assert_close(found, layer.projection(z.flatten(-2)), **CLOSE)


def test_the_unembedding_gives_the_logits_of_hugging_face(model, ids):
    final = capture(model, ids).final
    with torch.inference_mode():
        assert_close(model.unembedding.logits(final), model.hf(input_ids=ids).logits, **CLOSE)


def test_the_direct_contributions_of_a_layer_are_those_of_its_whole_attention(model, ids):
    captured = capture(model, ids, residual=True)
    for layer in model.layers:
        added = what_attention_added(model, layer.index, ids)
        # The projection's bias is no head's; it goes the same way.
        bias = layer.projection(torch.zeros_like(captured.z[layer.index].flatten(-2)))
        if layer.post_norm is not None:
            whole = layer.projection(captured.z[layer.index].flatten(-2))
            bias = layer.post_norm.frozen(bias, whole) + layer.post_norm.bias
        heads_only = added - bias * layer.multiplier
        expected = model.final_norm.frozen(heads_only, captured.final_residual)
        expected = model.unembedding.linear(expected)
        tokens = expected.argmax(-1)
        found = direct_logits(model, captured, layer.index, tokens).sum(-1)
        assert_close(found, expected.gather(-1, tokens[..., None])[..., 0], atol=1e-4, rtol=1e-3)


def test_frozen_and_real_final_norm_agree_on_the_whole_stream(model, ids):
    captured = capture(model, ids, residual=True)
    norm, whole = model.final_norm, captured.final_residual
    assert_close(norm.frozen(whole, whole) + norm.bias, captured.final, **CLOSE)


def test_the_residual_streams_are_hugging_faces_hidden_states(model, ids):
    captured = capture(model, ids, residual=True)
    with torch.inference_mode():
        states = model.hf(input_ids=ids, output_hidden_states=True).hidden_states
    for layer in model.layers[:-1]:
        assert_close(captured.residual[layer.index], states[layer.index + 1], **CLOSE)
    assert_close(captured.final_residual, captured.residual[model.layers[-1].index], **CLOSE)


def test_attention_rows_are_those_of_the_eager_model(model, ids):
    if model.name == "falcon-alibi":
        pytest.skip("transformers' own eager and sdpa Falcon disagree with ALiBi")
    with torch.inference_mode():
        eager = tiny(model.name, "eager")(input_ids=ids, output_attentions=True).attentions
    chosen = [layer.index for layer in model.layers[1:]]
    found = capture(model, ids, attention=chosen)
    assert list(found.attention) == chosen
    for index in chosen:
        assert_close(found.attention[index], eager[index], atol=1e-5, rtol=1e-3)


def test_only_the_asked_query_positions_are_computed(model, ids):
    whole = capture(model, ids, attention=[0]).attention[0]
    found = capture(model, ids, attention=[0], attention_positions=[3, -1]).attention[0]
    assert_close(found, whole[:, :, [3, -1]], atol=1e-5, rtol=1e-3)


def test_padding_on_the_right_changes_nothing(model, ids):
    mask = torch.ones(ids.shape, dtype=torch.bool)
    mask[0, 7:] = False
    together = capture(model, ids, mask=mask, attention=[0])
    alone = capture(model, ids[:1, :7], attention=[0])
    for layer in model.layers:
        assert_close(together.z[layer.index][:1, :7], alone.z[layer.index], **CLOSE)
    assert_close(together.final[:1, :7], alone.final, **CLOSE)
    assert_close(together.attention[0][:1, :, :7, :7], alone.attention[0], **CLOSE)


def test_a_run_in_two_pieces_with_a_cache_holds_the_same(model, ids):
    cache = DynamicCache(config=model.hf.config)
    capture(model, ids[:, :6], cache=cache)
    second = capture(model, ids[:, 6:], cache=cache, attention=[1])
    whole = capture(model, ids, attention=[1])
    assert_close(second.z[1], whole.z[1][:, 6:], **CLOSE)
    found, expected = second.attention[1], whole.attention[1][:, :, 6:]
    # A sliding window drops the oldest keys from the cache.
    assert_close(found, expected[..., -found.shape[-1] :], atol=1e-5, rtol=1e-3)


def test_nothing_is_kept_that_was_not_asked_for(llama, ids):
    captured = capture(llama, ids, layers=[1])
    assert list(captured.z) == [1]
    assert captured.residual == {} and captured.attention == {} and captured.final_residual is None
    assert not captured.z[1].requires_grad


def test_what_was_captured_can_be_learnt_from(llama, ids):
    z = capture(llama, ids).z[1]
    weight = torch.ones(z.shape[-1], requires_grad=True)
    (z @ weight).sum().backward()
    assert_close(weight.grad, z.sum((0, 1, 2)))


def test_the_output_matrix_turns_z_into_what_the_head_writes(model, ids):
    layer = model.layers[-1]
    z = capture(model, ids).z[layer.index]
    found = torch.einsum("bphd,hdm->bphm", z, output_matrix(layer))
    assert_close(found, head_outputs(layer, z), **CLOSE)


def test_no_hook_is_left_behind_when_a_run_fails(model, ids):
    sdpa = AttentionInterface()["sdpa"]

    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    before = n_hooks(model.hf)
    hook = model.layers[-1].projection.register_forward_hook(fail)
    with hook, pytest.raises(RuntimeError, match="in the middle"):
        capture(model, ids, residual=True, attention=[0])
    assert n_hooks(model.hf) == before  # transformers keeps some of its own
    assert AttentionInterface()["sdpa"] is sdpa
    assert torch.overrides._get_current_function_mode_stack() == []


def test_the_model_keeps_its_attention_implementation(llama, ids):
    capture(llama, ids, attention=[0])
    assert llama.hf.config._attn_implementation == "sdpa"


def test_an_attention_of_the_users_own_is_read_too(ids):
    def plain(module, query, key, value, attention_mask, scaling=None, **_):
        key, value = (x.repeat_interleave(3, dim=1) for x in (key, value))
        scores = query @ key.transpose(-1, -2) * scaling
        context = scores.masked_fill(~attention_mask, -1e30).softmax(-1) @ value
        return context.transpose(1, 2).contiguous(), None

    def mask_in_full(*args, **kwargs):
        return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})

    AttentionInterface.register("plain", plain)
    AttentionMaskInterface.register("plain", mask_in_full)
    model = wrap_model(tiny("llama", "plain"), None, name="plain")
    found = capture(model, ids, attention=[2])
    with torch.inference_mode():
        eager = tiny("llama", "eager")(input_ids=ids, output_attentions=True).attentions
    assert_close(found.attention[2], eager[2], atol=1e-5, rtol=1e-3)


def test_an_attention_that_hides_its_weights_is_refused_by_name(llama, ids, monkeypatch):
    monkeypatch.setattr(
        "saccade.interp.heads.attention_weights._Recorder.is_waiting", property(lambda _: False)
    )
    with pytest.raises(ModelError, match="layer 1: the model runs 'sdpa' attention"):
        capture(llama, ids, attention=[1])


def test_direct_logits_want_a_capture_with_the_residual_stream(llama, ids):
    captured = capture(llama, ids)
    with pytest.raises(UsageError, match="does not hold the contribution of layer 1") as error:
        direct_logits(llama, captured, 1, ids)
    assert "residual=True" in error.value.hint


def test_direct_logits_at_chosen_positions(llama, ids):
    captured = capture(llama, ids, residual=True)
    everywhere = direct_logits(llama, captured, 2, ids)
    found = direct_logits(llama, captured, 2, ids[:, [4, -1]], positions=[4, -1])
    assert_close(found, everywhere[:, [4, -1]])


def test_the_positions_that_are_kept_of_each_row_are_those_asked_for(llama):
    ids = 3 + torch.arange(2 * 7).view(2, 7)
    positions = torch.tensor([[0, 2, 4], [1, 3, 6]])
    whole, some = capture(llama, ids), capture(llama, ids, positions=positions)

    def kept(activations: Tensor) -> Tensor:
        return torch.stack([activations[0, [0, 2, 4]], activations[1, [1, 3, 6]]])

    assert torch.equal(some.final, kept(whole.final))
    assert all(torch.equal(some.z[layer], kept(z)) for layer, z in whole.z.items())


def test_a_second_output_that_is_no_matrix_for_each_head_is_not_taken_for_weights(ids):
    model = wrap_model(tiny("llama", "eager"), None, name="mean over heads")

    def mean_over_heads(_: nn.Module, __: object, output: tuple[Tensor, Tensor]) -> object:
        return output[0], output[1].mean(1)

    with (
        model.layer(1).attention.register_forward_hook(mean_over_heads),
        pytest.raises(ModelError, match="layer 1: the model runs 'eager' attention, which hides"),
    ):
        capture(model, ids, attention=[1])


def test_a_mask_longer_than_the_keys_is_read_as_far_as_there_are_keys(ids):
    def cut(module, query, key, value, attention_mask, **kwargs):
        own = attention_mask[..., : key.shape[2]]
        return AttentionInterface()["sdpa"](module, query, key, value, own, **kwargs)

    def longer_mask(*args, **kwargs):
        mask = sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})
        return nn.functional.pad(mask, (0, 3), value=True)

    AttentionInterface.register("cut", cut)
    AttentionMaskInterface.register("cut", longer_mask)
    found = capture(wrap_model(tiny("llama", "cut"), None, name="cut"), ids, attention=[2])
    with torch.inference_mode():
        eager = tiny("llama", "eager")(input_ids=ids, output_attentions=True).attentions
    assert_close(found.attention[2], eager[2], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("n_real", [11, 7], ids=["whole", "padded"])
def test_weights_with_a_bias_for_each_position_give_what_the_heads_hold(llama, ids, n_real):
    """Judged by the kernel itself: weights times values are what it handed to the projection."""
    mask = torch.ones(ids.shape, dtype=torch.bool)
    mask[0, n_real:] = False
    bias = torch.randn(1, 6, 11, 11, generator=torch.Generator().manual_seed(2))
    attention, values = llama.layer(1).attention, []

    def with_bias(_: nn.Module, args: object, kwargs: dict[str, object]) -> object:
        return args, {**kwargs, "position_bias": bias}

    with (
        attention.register_forward_pre_hook(with_bias, with_kwargs=True),
        attention.v_proj.register_forward_hook(lambda _, __, output: values.append(output)),
    ):
        found = capture(llama, ids, mask=mask, attention=[1])
    value = values[0].view(*ids.shape, 2, 10).repeat_interleave(3, dim=2)  # one for each head
    activation = torch.einsum("bhqk,bkhd->bqhd", found.attention[1], value)
    assert_close(activation[mask], found.z[1][mask], **CLOSE)
