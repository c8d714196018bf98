"""Dropout by random bytes: judged by its law, and by torch's generator."""

import pytest
import torch

from saccade.zoo.fast.dropout import Dropout


def drop(p: float, x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return Dropout(p)(x)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_as_many_are_dropped_as_asked_for_and_the_mean_stays(p):
    n = 1_000_003
    dropped = drop(p, torch.ones(n))
    # p is rounded to 1/256, and five standard deviations of a share of n are allowed.
    slack = 5 * (p * (1 - p) / n) ** 0.5
    assert abs((dropped == 0).double().mean().item() - p) < 1 / 512 + slack
    assert dropped.double().mean().item() == pytest.approx(1.0, abs=slack / (1 - p) ** 1.01)


def test_every_place_is_dropped_alike():
    """The eighth byte of a word must be as random as the others."""
    shares = (drop(0.25, torch.ones(200_000, 8)) == 0).double().mean(0)
    assert (shares - 0.25).abs().max() < 5 * (0.25 * 0.75 / 200_000) ** 0.5


def test_the_gradient_goes_where_the_value_went():
    x = torch.randn(7, 11, 13, requires_grad=True)
    dropped = drop(0.3, x)
    dropped.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad * x, dropped)
    assert len(x.grad.unique()) == 2


def test_the_seed_decides():
    x = torch.randn(5, 7)
    assert torch.equal(drop(0.4, x, seed=3), drop(0.4, x, seed=3))
    assert not torch.equal(drop(0.4, x, seed=3), drop(0.4, x, seed=4))


def test_nothing_is_dropped_in_eval_mode_or_at_rate_zero():
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_all_can_be_dropped():
    assert not drop(1.0, torch.ones(17)).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_kind_of_number_stays(dtype):
    assert drop(0.5, torch.ones(5, dtype=dtype)).dtype is dtype


def test_a_view_with_strides_is_dropped_like_any_other():
    x = torch.arange(1.0, 36.0).view(5, 7).T
    assert torch.equal(drop(0.5, x), drop(0.5, x.contiguous()))


def test_on_another_device_nothing_is_drawn_on_the_processor():
    x = torch.empty(2, 3, device="meta")
    assert Dropout(0.5)(x).device.type == "meta"
