"""Judged against the formula written out; test_capture.py has Hugging Face's own logits."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from families import FAMILIES, build, tiny
from torch.testing import assert_close

from saccade.errors import ModelError
from saccade.interp.heads.capture import try_model
from saccade.interp.heads.model import wrap_model
from saccade.interp.heads.residual_path import Unembedding, find_unembedding
from saccade.interp.heads.taps import find_taps

D_MODEL, D_VOCAB, BATCH, POS = 5, 11, 2, 3


@pytest.fixture
def final() -> torch.Tensor:
    return torch.randn(BATCH, POS, D_MODEL, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def unembedding() -> Unembedding:
    generator = torch.Generator().manual_seed(1)
    return Unembedding(
        weight=torch.randn(D_VOCAB, D_MODEL, generator=generator),
        bias=torch.randn(D_VOCAB, generator=generator),
        scale=0.3,
        softcap=1.7,
    )


@pytest.mark.parametrize("scale", [0.3, 0.0, 1.0, 2.0])
def test_logits_follow_the_formula(unembedding, final, scale):
    unembedding = replace(unembedding, scale=scale)
    raw = scale * (final @ unembedding.weight.T + unembedding.bias)
    assert_close(unembedding.logits(final), 1.7 * torch.tanh(raw / 1.7))
    assert_close(unembedding.linear(final), scale * (final @ unembedding.weight.T))


def test_the_logits_of_some_tokens_are_those_of_all(unembedding, final):
    tokens = torch.tensor([7, 0, 7])
    assert_close(unembedding.logits(final, tokens=tokens), unembedding.logits(final)[..., tokens])
    assert_close(unembedding.linear(final, tokens=tokens), unembedding.linear(final)[..., tokens])


def test_linear_shares_add_up(unembedding, final):
    parts = torch.stack([0.25 * final, 0.75 * final])
    assert_close(unembedding.linear(parts).sum(0), unembedding.linear(final))


def test_scale_and_soft_cap_are_the_configs_own(wrapped):
    assert wrapped("cohere").unembedding.scale == FAMILIES["cohere"]["logit_scale"]
    assert wrapped("granite").unembedding.scale == 1 / FAMILIES["granite"]["logits_scaling"]
    assert wrapped("gemma2").unembedding.softcap == FAMILIES["gemma2"]["final_logit_softcapping"]
    assert (
        wrapped("llama").unembedding.scale == 1.0 and wrapped("llama").unembedding.softcap is None
    )


def test_the_matrix_is_not_copied(wrapped):
    model = wrapped("llama")
    assert model.unembedding.weight is model.hf.get_output_embeddings().weight


def scaled_by_a_number_no_config_names(family, scale, *, size=1.0, **settings):
    """A model whose head's output is scaled, with these settings in its config."""
    config = copy.deepcopy(tiny(family).config)
    for name, value in settings.items():
        setattr(config, name, value)
    hf = build(config)
    hf.lm_head.weight.data *= size
    hf.lm_head.register_forward_hook(lambda _, __, output: output * scale)
    return hf


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e3])
def test_a_scale_is_measured_whatever_the_size_of_the_logits(size):
    hf = scaled_by_a_number_no_config_names("llama", 0.61, size=size)
    assert wrap_model(hf, None, name="scaled").unembedding.scale == pytest.approx(0.61, rel=1e-4)


# The raw logits reach about 4: far below the first cap, and many times the second.
@pytest.mark.parametrize("cap", [50.0, 1.0, 0.3])
def test_a_scale_is_measured_through_a_soft_cap(cap):
    hf = scaled_by_a_number_no_config_names("gemma2", 0.61, final_logit_softcapping=cap)
    found = wrap_model(hf, None, name="scaled and capped").unembedding
    assert found.softcap == cap
    assert found.scale == pytest.approx(0.61, rel=1e-3)


@pytest.mark.parametrize("cap", [0.0, -1.0, None])
def test_a_soft_cap_that_is_not_positive_is_none(cap):
    hf = scaled_by_a_number_no_config_names("llama", 0.61, final_logit_softcapping=cap)
    found = wrap_model(hf, None, name="not capped").unembedding
    assert found.softcap is None
    assert found.scale == pytest.approx(0.61, rel=1e-4)


def test_a_divisor_of_zero_in_a_config_is_not_divided_by():
    hf = scaled_by_a_number_no_config_names("llama", 0.61, logits_scaling=0)
    assert wrap_model(hf, None, name="zero").unembedding.scale == pytest.approx(0.61, rel=1e-4)


@pytest.mark.parametrize(
    "head",
    [None, SimpleNamespace(), SimpleNamespace(weight=None), SimpleNamespace(weight=torch.ones(5))],
    ids=["none", "no weight", "weight of none", "a vector"],
)
def test_a_model_without_an_output_matrix_is_refused(monkeypatch, head):
    hf = tiny("llama")
    trial = try_model(hf, find_taps(hf))
    monkeypatch.setattr(hf, "get_output_embeddings", lambda: head)
    with pytest.raises(ModelError, match="this llama model has no output embedding") as error:
        find_unembedding(hf, trial)
    assert "causal language model" in error.value.hint


def test_a_final_state_of_another_width_than_the_matrix_is_refused():
    hf = tiny("llama")
    trial = try_model(hf, find_taps(hf))
    with pytest.raises(ModelError, match="ends in 47 features and the output embedding reads 48"):
        find_unembedding(hf, replace(trial, final=trial.final[..., :-1]))


def offloaded_head(hook):
    """An output embedding whose weight accelerate keeps elsewhere, behind a placeholder."""
    head = torch.nn.Linear(48, 101, bias=False, device="meta")
    head._hf_hook = hook
    return head


def test_a_matrix_that_is_kept_elsewhere_is_taken_from_there(monkeypatch):
    hf = build(tiny("llama").config).requires_grad_(requires_grad=False)
    trial = try_model(hf, find_taps(hf))
    kept = {"weight": hf.lm_head.weight}
    one = SimpleNamespace(weights_map=kept)
    several = SimpleNamespace(hooks=[SimpleNamespace(), SimpleNamespace(weights_map=None), one])
    for hook in (one, several):
        monkeypatch.setattr(hf, "get_output_embeddings", lambda hook=hook: offloaded_head(hook))
        assert find_unembedding(hf, trial).weight is kept["weight"]
    for hook in (None, SimpleNamespace(hooks=[])):
        monkeypatch.setattr(hf, "get_output_embeddings", lambda hook=hook: offloaded_head(hook))
        with pytest.raises(AssertionError, match="weight of the output embedding is a placeholder"):
            find_unembedding(hf, trial)
