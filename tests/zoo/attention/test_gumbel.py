"""Gumbel selection against its limits and against the softmax it samples."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.attention.select import GumbelSelect

SCORES = torch.tensor([[0.0, 1.0, 2.0], [1.0, -1.0, 0.5]])
MASK = torch.tensor([[True, True, True], [True, False, True]])


def test_the_largest_weight_falls_on_a_key_as_often_as_the_softmax_says():
    torch.manual_seed(0)
    scores = SCORES[:, None].expand(2, 20011, 3)
    weights = GumbelSelect(temperature=0.7)(scores, MASK[:, None]).weights
    chosen = torch.nn.functional.one_hot(weights.argmax(-1), 3).float()
    expected = SCORES.masked_fill(~MASK, -torch.inf).softmax(-1)
    # Three standard deviations of a share among 20 thousand draws are 0.011.
    torch.testing.assert_close(chosen.mean(1), expected, atol=0.011, rtol=0)


def test_a_lower_temperature_is_harder():
    sharpness = []
    for temperature in (10.0, 1.0, 0.1, 0.01):
        torch.manual_seed(0)
        select = GumbelSelect(temperature=temperature)
        weights = select(SCORES[:, None].expand(2, 101, 3), MASK[:, None]).weights
        sharpness.append(weights.amax(-1).mean().item())
    assert sharpness == sorted(sharpness)
    assert sharpness[-1] > 0.98


def test_straight_through_is_one_hot_with_the_gradient_of_the_soft_weights():
    wanted = torch.randn(2, 1, 3)
    gradients, weights = [], []
    for straight_through in (False, True):
        torch.manual_seed(0)
        scores = SCORES[:, None].clone().requires_grad_()
        select = GumbelSelect(temperature=0.7, straight_through=straight_through)
        weights.append(select(scores, MASK[:, None]).weights)
        (weights[-1] * wanted).sum().backward()
        gradients.append(scores.grad)
    soft, hard = weights
    assert set(hard.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(hard.argmax(-1), soft.argmax(-1))
    torch.testing.assert_close(gradients[1], gradients[0])
    assert gradients[0].abs().sum() > 0


@pytest.mark.parametrize("straight_through", [True, False])
def test_in_evaluation_the_largest_score_has_all_the_weight(straight_through):
    select = GumbelSelect(straight_through=straight_through).eval()
    weights = select(SCORES[:, None], MASK[:, None]).weights
    assert weights.tolist() == [[[0, 0, 1]], [[1, 0, 0]]]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_must_be_above_zero(temperature):
    with pytest.raises(UsageError, match="must be above 0, got"):
        GumbelSelect(temperature=temperature)


def test_unless_told_the_weights_in_training_are_soft():
    weights = GumbelSelect()(SCORES[:, None], MASK[:, None]).weights
    assert ((weights > 0) == MASK[:, None]).all() and (weights < 1).all()
