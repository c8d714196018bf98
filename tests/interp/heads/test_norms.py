"""Judged against torch's own norms and a norm written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from saccade.errors import ModelError
from saccade.interp.heads.taps import probe_norm

D_MODEL, BATCH, PARTS = 13, 2, 5


class OnePlusWeight(nn.Module):
    """Gemma's RMSNorm: the gain is 1 + weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D_MODEL))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + self.weight)


def randomised(norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for weight in norm.parameters():
        nn.init.normal_(weight)
    return norm.requires_grad_(False)


NORMS = {
    "LayerNorm": lambda: nn.LayerNorm(D_MODEL),
    "LayerNorm without weights": lambda: nn.LayerNorm(D_MODEL, elementwise_affine=False),
    "RMSNorm": lambda: nn.RMSNorm(D_MODEL, eps=1e-5),
    "RMSNorm with 1 + weight": OnePlusWeight,
    "no norm": nn.Identity,
}


@pytest.fixture(params=list(NORMS))
def module(request: pytest.FixtureRequest) -> nn.Module:
    return randomised(NORMS[request.param]())


@pytest.fixture
def parts() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 3.0 * torch.randn(BATCH, PARTS, D_MODEL, generator=generator) + 0.5


def test_normed_is_the_module_itself(module, parts):
    norm = probe_norm(module, d_model=D_MODEL)
    assert norm.module is module
    assert_close(norm.normed(parts), module(parts))


def test_frozen_parts_add_up_to_the_normed_whole(module, parts):
    norm = probe_norm(module, d_model=D_MODEL)
    whole = parts.sum(1)
    total = norm.frozen(parts, whole[:, None]).sum(1) + norm.bias
    assert_close(total, module(whole), atol=1e-5, rtol=1e-4)


def test_frozen_is_linear_in_the_part(module, parts):
    norm = probe_norm(module, d_model=D_MODEL)
    whole = parts.sum(1, keepdim=True)
    assert_close(norm.frozen(2.5 * parts, whole), 2.5 * norm.frozen(parts, whole))


def test_frozen_is_the_formula_of_layer_norm(parts):
    module = randomised(nn.LayerNorm(D_MODEL))
    whole = parts.sum(1, keepdim=True)
    std = (whole.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
    expected = (parts - parts.mean(-1, keepdim=True)) / std * module.weight
    found = probe_norm(module, d_model=D_MODEL).frozen(parts, whole)
    assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_the_gain_of_a_half_precision_norm_is_not_rounded():
    module = randomised(nn.LayerNorm(D_MODEL)).bfloat16()
    norm = probe_norm(module, d_model=D_MODEL)
    ratio = norm.gain / module.weight.float()
    assert_close(ratio, ratio[:1].expand_as(ratio), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("module", [nn.Tanh(), nn.Softmax(-1)], ids=["Tanh", "Softmax"])
def test_what_is_not_a_norm_is_refused_by_name(module):
    with pytest.raises(ModelError, match=f"model.end .{type(module).__name__}. is not a LayerNorm"):
        probe_norm(module, d_model=D_MODEL, path="model.end")
