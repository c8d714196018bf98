"""Queries and keys of a run give the attention of the eager model; nothing is kept."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from families import tiny
from torch.testing import assert_close
from transformers import AttentionInterface

from saccade.errors import ModelError
from saccade.interp.heads.attention_weights import recorded_queries
from saccade.interp.heads.capture import capture, run_base
from saccade.interp.heads.model import wrap_model

# They compute their scores by themselves: no kernel gets their queries.
BY_THEMSELVES = {"bloom", "gpt_neo", "gptj"}


def seen_in(model, ids, layers=None):
    found = []
    chosen = model.layers if layers is None else layers
    with (
        torch.inference_mode(),
        recorded_queries(model.hf, chosen, lambda *each: found.append(each)),
    ):
        run_base(model.hf, ids)
    return found


def test_weights_of_the_run_are_those_of_the_capture_and_queries_have_the_heads_shape(model, ids):
    if model.name in BY_THEMSELVES:
        with pytest.raises(ModelError, match="computes its scores by itself"):
            seen_in(model, ids)
        return
    found = seen_in(model, ids)
    wanted = capture(model, ids, attention=[at.index for at in model.layers]).attention
    assert [layer for layer, *_ in found] == [at.index for at in model.layers]
    for layer, query, key, weights in found:
        at = model.layer(layer)
        assert query.shape[:3] == (len(ids), at.n_heads, ids.shape[1])
        assert key.shape[0] == len(ids) and at.n_heads % key.shape[1] == 0
        assert_close(weights, wanted[layer])


@pytest.mark.parametrize("attention", [None, "eager"])  # Gemma 2 has no other than eager
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "gemma2"])
def test_scores_of_the_queries_and_keys_are_the_models_log_weights(family, attention, ids):
    """Differences of log weights within a row are differences of scores."""
    model = wrap_model(tiny(family, attention), None, name=family)
    config = model.hf.config
    scale = getattr(config, "query_pre_attn_scalar", None) or model.layers[0].d_head
    with torch.inference_mode():
        eager = tiny(family, "eager")(input_ids=ids, output_attentions=True).attentions
    for layer, query, key, _ in seen_in(model, ids):
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        scores = query @ keys.transpose(-1, -2) * scale**-0.5
        if (cap := getattr(config, "attn_logit_softcapping", None)) is not None:
            scores = cap * torch.tanh(scores / cap)
        last = scores[..., -1, -4:]  # inside every window
        log = eager[layer][..., -1, -4:].log()
        assert_close(last - last[..., :1], log - log[..., :1], atol=1e-4, rtol=1e-3)
    assert "eager" not in AttentionInterface()


def test_each_run_gives_each_chosen_layer_once_and_keeps_nothing(llama, ids):
    alive: list[weakref.ref] = []
    n_alive = []

    def give(layer, query, key, weights):
        gc.collect()
        n_alive.append((layer, sum(each() is not None for each in alive)))
        alive.append(weakref.ref(weights))

    with recorded_queries(llama.hf, llama.layers[1:], give), torch.inference_mode():
        run_base(llama.hf, ids)
        run_base(llama.hf, ids)
    assert n_alive == [(1, 0), (2, 0), (1, 0), (2, 0)]


def test_a_wrapped_kernel_is_put_back_when_the_callback_fails(llama, ids):
    before = AttentionInterface()["sdpa"]

    def fail(*_):
        raise RuntimeError("in the middle")

    with (
        pytest.raises(RuntimeError, match="in the middle"),
        recorded_queries(llama.hf, llama.layers, fail),
    ):
        run_base(llama.hf, ids)
    assert AttentionInterface()["sdpa"] is before
