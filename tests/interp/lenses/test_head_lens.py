"""The lenses of heads, judged head by head and position by position."""

import pytest
import torch

from saccade.interp.heads.capture import capture, head_outputs
from saccade.interp.lenses.head_lens import DenseHeadLens, HeadLens, output_maps

LAYER = 1
# The code takes one way up to d_head = 10 positions, and another beyond.
FEW, MANY = 7, 23


@pytest.fixture(scope="module")
def lens(tiny_llama):
    lens = HeadLens.start(tiny_llama, LAYER).requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in lens.parameters():
        parameter.normal_(generator=generator)
    return lens


def activation(model, n):
    at = model.layer(LAYER)
    return torch.randn(n, at.n_heads, at.d_head, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("n", [FEW, MANY])
def test_logits_are_those_of_a_loop_over_heads_and_positions(tiny_llama, lens, n):
    z, w_u = activation(tiny_llama, n), tiny_llama.unembedding.weight
    found = lens(z)
    assert found.shape == (n, 6, 101)
    for position in range(n):
        for head in range(6):
            said = lens.weight[head].T @ z[position, head] + lens.bias[head]
            expected = w_u @ said + lens.token_bias[head]
            torch.testing.assert_close(found[position, head], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("n", [FEW, MANY])
def test_named_tokens_are_a_slice_of_all(tiny_llama, lens, n):
    tokens = torch.tensor([100, 3, 3, 57])
    z = activation(tiny_llama, n)
    torch.testing.assert_close(lens(z, tokens=tokens), lens(z)[..., tokens], atol=1e-5, rtol=1e-5)
    dense = DenseHeadLens.start(tiny_llama, LAYER)
    torch.testing.assert_close(dense(z, tokens=tokens), dense(z)[..., tokens])


def test_the_published_lens_starts_as_the_unembedding_of_what_the_head_writes(tiny_llama):
    at, z = tiny_llama.layer(LAYER), activation(tiny_llama, FEW)
    expected = head_outputs(at, z) @ tiny_llama.unembedding.weight.T
    found = DenseHeadLens.start(tiny_llama, LAYER)(z)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_what_the_heads_write_adds_up_to_the_projections_output(tiny_llama):
    ids = torch.tensor([[5, 17, 41], [2, 3, 99]])
    z = capture(tiny_llama, ids).z[LAYER]
    written = torch.einsum("bphi,hid->bpd", z, output_maps(tiny_llama, LAYER))
    projected = tiny_llama.layer(LAYER).projection(z.flatten(-2))
    torch.testing.assert_close(written, projected, atol=1e-5, rtol=1e-5)


def test_an_untrained_lens_finds_every_token_as_likely(tiny_llama):
    logits = HeadLens.start(tiny_llama, LAYER)(activation(tiny_llama, FEW))
    assert (logits == 0).all()


def test_the_models_own_weights_are_neither_trained_nor_stored(tiny_llama):
    lens = HeadLens.start(tiny_llama, LAYER)
    assert set(lens.state_dict()) == {"weight", "bias", "token_bias"}
    assert set(DenseHeadLens.start(tiny_llama, LAYER).state_dict()) == {"weight", "bias"}
    lens(activation(tiny_llama, FEW)).sum().backward()
    assert tiny_llama.unembedding.weight.grad is None
    assert lens.unembed.weight.data_ptr() == tiny_llama.unembedding.weight.data_ptr()
