"""Schedules by their formulas, choices by their frequencies."""

import math

import pytest
import torch

from saccade.zoo.objectives.feedback import (
    choose_fed,
    exponential_feeding,
    inverse_sigmoid_feeding,
    linear_feeding,
)


@pytest.mark.parametrize("step", [0, 1, 17, 400])
def test_the_schedules_are_the_papers(step):
    assert linear_feeding(step, slope=0.01, least=0.2) == max(0.2, 1 - 0.01 * step)
    assert exponential_feeding(step, base=0.99) == pytest.approx(0.99**step)
    k = 50.0
    expected = k / (k + math.exp(step / k))
    assert inverse_sigmoid_feeding(step, speed=k) == pytest.approx(expected)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda step: linear_feeding(step, slope=1e-3),
        lambda step: exponential_feeding(step, base=0.999),
        lambda step: inverse_sigmoid_feeding(step, speed=100.0),
    ],
    ids=["linear", "exponential", "inverse sigmoid"],
)
def test_every_schedule_falls_from_about_one_to_about_zero_and_never_overflows(schedule):
    values = [schedule(step) for step in (0, 10, 100, 500, 900, 10**4, 10**6)]
    assert values[0] > 0.98 and values[-1] < 1e-3
    assert values == sorted(values, reverse=True)
    assert all(0 <= value <= 1 for value in values)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_the_truth_is_fed_as_often_as_asked(probability):
    n = 20_011
    truth, predicted = torch.full((n,), 5), torch.full((n,), 7)
    generator = torch.Generator().manual_seed(0)
    fed = choose_fed(truth, predicted, probability=probability, generator=generator)
    assert set(fed.tolist()) <= {5, 7}
    share = (fed == 5).float().mean().item()
    assert share == pytest.approx(probability, abs=0.0 if probability in (0.0, 1.0) else 0.015)


def test_the_same_seed_feeds_the_same():
    truth, predicted = torch.arange(13), torch.arange(13) + 100
    one, two = (
        choose_fed(truth, predicted, probability=0.5, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert torch.equal(one, two)
    assert 0 < (one < 100).sum() < 13
