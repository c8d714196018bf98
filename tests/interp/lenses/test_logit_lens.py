"""The logit lens is the model at its last layer; the heads' logits add up."""

import sys
from pathlib import Path

import pytest
import torch

from saccade.interp.heads.capture import capture, head_outputs
from saccade.interp.heads.model import wrap_model
from saccade.interp.lenses.lens import activation_at, lens_kind
from saccade.interp.lenses.residual_lenses import HeadLogitLens, LogitLens

sys.path.insert(0, str(Path(__file__).parent.parent / "heads"))

from families import VOCAB, tiny

BATCH, LENGTH = 2, 7
# Between them: both norms, Conv1D, biases, a soft-cap, a scale of the logits, a multiplier, norms
# after attention, and parallel blocks.
FAMILIES = ("gpt2", "gpt_neox", "opt", "llama", "gemma2", "olmo2", "cohere", "granite", "phi")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return wrap_model(tiny(request.param), None, name=request.param)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(3, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3))


def model_logits(model, ids) -> torch.Tensor:
    return model.hf(ids, use_cache=False).logits.flatten(0, 1).float()


@torch.no_grad()
def test_after_the_last_layer_it_is_the_model_itself(model, ids):
    last = model.layers[-1].index
    captured = capture(model, ids, residual=True)
    logits = LogitLens.start(model, last)(activation_at(model, captured, last, "residual"))
    torch.testing.assert_close(logits[:, 0], model_logits(model, ids), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_before_the_last_layer_it_norms_the_stream_of_its_own_layer(model, ids):
    captured = capture(model, ids, residual=True)
    logits = LogitLens.start(model, 0)(activation_at(model, captured, 0, "residual"))
    by_hand = model.hf.get_output_embeddings()(model.final_norm.module(captured.residual[0]))
    if model.unembedding.softcap is None:
        by_hand = by_hand.flatten(0, 1) * model.unembedding.scale
        torch.testing.assert_close(logits[:, 0], by_hand, atol=1e-5, rtol=1e-5)
    assert logits.shape == (BATCH * LENGTH, 1, VOCAB)


@torch.no_grad()
def test_logits_of_some_tokens_are_those_of_all(model, ids):
    captured = capture(model, ids, residual=True)
    tokens = torch.tensor([11, 5, 97])
    for kind in (LogitLens, HeadLogitLens):
        lens, activation = kind.start(model, 1), activation_at(model, captured, 1, kind.site)
        torch.testing.assert_close(lens(activation, tokens=tokens), lens(activation)[..., tokens])


@torch.no_grad()
def test_the_heads_of_the_last_layer_are_what_the_logits_lose_without_them():
    """By taking the heads out of the stream, its scale held still, with a norm written out."""
    model = wrap_model(tiny("llama"), None, name="llama")
    ids = torch.arange(3, 3 + BATCH * LENGTH).view(BATCH, LENGTH)
    captured = capture(model, ids, residual=True)
    last = model.layers[-1]
    lens = HeadLogitLens.start(model, last.index)
    logits = lens(activation_at(model, captured, last.index, "direct"))
    stream, norm = captured.final_residual, model.final_norm.module
    scale = stream.square().mean(-1, keepdim=True).add(norm.variance_epsilon).rsqrt()
    for head in range(last.n_heads):
        without = stream - head_outputs(last, captured.z[last.index])[:, :, head]
        lost = model.hf.lm_head((stream - without) * scale * norm.weight)
        torch.testing.assert_close(logits[:, head], lost.flatten(0, 1), atol=1e-4, rtol=1e-4)


def test_they_have_names_and_nothing_to_learn_or_save(model):
    for kind in ("logit", "logit-head"):
        lens = lens_kind(kind).start(model, 0)
        assert not list(lens.parameters())
        assert not lens.state_dict()
