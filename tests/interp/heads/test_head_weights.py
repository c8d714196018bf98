"""The weights of heads give the attention and the output of the eager model, or are refused."""

from __future__ import annotations

import copy

import pytest
import torch
from families import FAMILIES, tiny
from torch import nn
from torch.testing import assert_close

from saccade.errors import ModelError
from saccade.interp.heads.capture import capture, on_input, on_output
from saccade.interp.heads.head_weights import head_weights, rotations
from saccade.interp.heads.model import wrap_model

# They compute their scores by themselves: what was found could not be verified.
REFUSED = {"bloom", "gpt_neo", "gptj"}
# Their position is in the stream or in the scores, not in queries and keys.
NOT_ROTARY = {"gpt2", "opt", "falcon-alibi"}


@pytest.fixture(scope="session")
def opened():
    """The tiny model of a family, with no two weights the same."""
    made = {}

    def make(family, attention=None):
        if (family, attention) not in made:
            hf = copy.deepcopy(tiny(family, attention))
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for weight in hf.parameters():
                    weight.add_(0.3 * weight.std() * torch.randn(weight.shape, generator=generator))
            made[family, attention] = wrap_model(hf, None, name=family)
        return made[family, attention]

    return make


@pytest.fixture(params=sorted(set(FAMILIES) - REFUSED))
def model(request, opened):
    return opened(request.param)


@pytest.fixture
def eager(opened, model):
    return opened(model.name, "eager")


def run(model, ids, **given):
    """By layer: the stream before the block, and the output of the projection; and the weights."""
    streams, wrote = {}, {}
    handles = [
        on_input(at.block, lambda x, i=at.index: streams.update({i: x})) for at in model.layers
    ]
    handles += [
        on_output(at.projection, lambda x, i=at.index: wrote.update({i: x})) for at in model.layers
    ]
    with torch.no_grad():
        weights = model.hf(input_ids=ids, output_attentions=True, **given).attentions
    for handle in handles:
        handle.remove()
    return streams, wrote, weights


def scores_of(model, query, key):
    config = model.hf.config
    scale = getattr(config, "attention_multiplier", None)
    scale = scale or (getattr(config, "query_pre_attn_scalar", None) or query.shape[-1]) ** -0.5
    group = query.shape[2] // key.shape[2]
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key.repeat_interleave(group, 2)) * scale
    cap = getattr(config, "attn_logit_softcapping", None)
    return scores if cap is None else cap * torch.tanh(scores / cap)


def assert_scores_are_log_weights(scores, weights):
    """Up to a number for each query; only the last four keys, which every window has."""
    ours, log = scores[..., -1, -4:], weights[..., -1, -4:].log()
    assert_close(ours - ours[..., :1], log - log[..., :1], atol=2e-4, rtol=2e-3)


def test_queries_and_keys_without_position_give_the_attention_of_a_text_all_at_position_zero(
    model, eager, ids
):
    if model.name == "falcon-alibi":
        pytest.skip("its scores have a number for each distance besides")
    zeros = {} if model.name in NOT_ROTARY else {"position_ids": torch.zeros_like(ids)}
    streams, _, weights = run(eager, ids, **zeros)
    for found in head_weights(model).values():
        scaled = found.scaled(streams[found.at.index])
        query, key = found.query.full(scaled), found.key.full(scaled)
        assert_scores_are_log_weights(scores_of(model, query, key), weights[found.at.index])


def test_with_the_measured_position_they_give_the_attention_of_any_text(model, eager, ids):
    if model.name == "falcon-alibi":
        pytest.skip("its scores have a number for each distance besides")
    streams, _, weights = run(eager, ids)
    found = head_weights(model)
    turns = rotations(model, list(found.values()), ids[:1])
    for layer, each in found.items():
        scaled, turn = each.scaled(streams[layer]), turns[layer]
        query = torch.einsum("bphd,pde->bphe", each.query.full(scaled), turn.query)
        key = torch.einsum("bphd,pde->bphe", each.key.full(scaled), turn.key)
        if model.name == "opt":  # its queries are scaled before the kernel
            query = query * model.layers[0].d_head ** 0.5
        assert_scores_are_log_weights(scores_of(model, query, key), weights[layer])


def test_values_and_outputs_give_what_the_attention_writes(model, eager, ids):
    streams, wrote, weights = run(eager, ids)
    for layer, each in head_weights(model).items():
        value = each.value.full(each.scaled(streams[layer]))
        value = value.repeat_interleave(each.at.n_heads // value.shape[2], 2)
        z = torch.einsum("bhqk,bkhd->bqhd", weights[layer], value)
        ours = torch.einsum("bqhd,hdm->bqm", z, each.output)
        bias = getattr(each.at.projection, "bias", None)
        theirs = wrote[layer].view(ours.shape) - (0 if bias is None else bias)
        if each.at.post_norm is not None:  # its scale is not in the weights
            theirs = each.at.post_norm.normed(theirs) - each.at.post_norm.bias
            ours, theirs = (x / x.norm(dim=-1, keepdim=True) for x in (ours, theirs))
        assert_close(ours, theirs * each.at.multiplier, atol=2e-4, rtol=2e-3)


def test_rotations_undone_give_the_queries_before_position(opened, ids):
    model = opened("llama")
    found = head_weights(model, [1])[1]
    turn = rotations(model, [found], ids[:1])[1]
    assert_close(turn.query @ turn.query.mT, torch.eye(10).expand(ids.shape[1], 10, 10))
    query = torch.randn(2, 6, ids.shape[1], 10)
    turned = torch.einsum("bhpd,pde->bhpe", query, turn.query)
    assert_close(turn.undone(turned, of_keys=False), query, atol=1e-4, rtol=1e-4)


def test_folded_weights_are_the_derivative_of_the_query_up_to_the_scales(opened):
    """Of Qwen 3, whose queries have a norm, at a stream that the norms do not change in length."""
    model = opened("qwen3")
    found = head_weights(model, [2])[2]
    stream = torch.randn(7, model.d_model)
    raw = found.query.raw(found.scaled(stream))
    assert found.query.norm is not None
    scale = found.query.norm.scale(raw)
    folded = found.query.folded()
    query = torch.einsum("pm,hmd->phd", found.scaled(stream), folded) * scale
    assert_close(query, found.query.full(found.scaled(stream)), atol=1e-4, rtol=1e-3)
    assert found.of_heads(found.key).shape == (6, model.d_model, 10)


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_families_whose_queries_cannot_be_seen_are_refused(opened, family):
    with pytest.raises(ModelError, match="computes its scores by itself"):
        head_weights(opened(family))


def test_queries_that_are_not_linear_in_the_stream_are_refused():
    hf = copy.deepcopy(tiny("llama"))
    attention = hf.model.layers[1].self_attn
    attention.q_proj = nn.Sequential(attention.q_proj, nn.Tanh())
    model = wrap_model(hf, None, name="tanh")
    assert set(head_weights(model, [0, 2])) == {0, 2}
    with pytest.raises(
        ModelError, match=r"layers\.1\.self_attn.*through a Tanh, which is not a norm"
    ) as caught:
        head_weights(model)
    assert "effects, lenses and attention" in caught.value.hint


def test_a_capture_is_not_changed_by_finding_weights(opened, ids):
    model = opened("gpt2")
    before = capture(model, ids).final
    head_weights(model)
    assert torch.equal(capture(model, ids).final, before)
