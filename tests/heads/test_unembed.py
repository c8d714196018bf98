"""Judged against the formula written out; test_capture.py has Hugging Face's own logits."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES
from torch.testing import assert_close

from saccade.heads import Unembedding

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


def test_logits_follow_the_formula(unembedding, final):
    raw = 0.3 * (final @ unembedding.weight.T + unembedding.bias)
    assert_close(unembedding.logits(final), 1.7 * torch.tanh(raw / 1.7))


def test_the_logits_of_some_words_are_those_of_all(unembedding, final):
    words = torch.tensor([7, 0, 7])
    assert_close(unembedding.logits(final, words=words), unembedding.logits(final)[..., words])
    assert_close(unembedding.linear(final, words=words), unembedding.linear(final)[..., words])


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
