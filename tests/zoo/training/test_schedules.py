"""How the learning rate goes up and down."""

import math
from itertools import pairwise

import pytest
import torch

from saccade.errors import TrainingError
from saccade.zoo.training.optim import check_schedule, rate_at
from saccade.zoo.training.settings import TrainConfig

STEPS, WARMUP = 53, 7


def rates(schedule, *, warmup=WARMUP, **more):
    config = TrainConfig(learning_rate=0.3, schedule=schedule, warmup=warmup)
    return [rate_at(step, config, total=STEPS, **more) for step in range(1, STEPS + 1)]


def test_every_schedule_rises_in_a_line_to_its_highest_rate():
    for schedule in ("constant", "warmup-inverse-sqrt", "linear", "cosine", "plateau-halving"):
        found = rates(schedule)
        assert found[:WARMUP] == pytest.approx([0.3 * k / WARMUP for k in range(1, WARMUP + 1)])
        assert max(found) == pytest.approx(0.3)
        assert all(late <= early for early, late in pairwise(found[6:]))


@pytest.mark.parametrize(("schedule", "end"), [("linear", 0.3), ("cosine", 0.3)])
def test_a_training_that_ends_with_its_warmup_ends_at_the_highest_rate(schedule, end):
    config = TrainConfig(learning_rate=0.3, schedule=schedule, warmup=STEPS)
    assert rate_at(STEPS, config, total=STEPS) == pytest.approx(end)


def test_inverse_sqrt_is_the_papers_formula_up_to_its_height():
    """lrate = d_model^-0.5 min(step^-0.5, step warmup^-1.5)."""
    published = [min(k**-0.5, k * WARMUP**-1.5) for k in range(1, STEPS + 1)]
    scale = 0.3 / max(published)
    assert rates("warmup-inverse-sqrt") == pytest.approx([scale * rate for rate in published])


def test_cosine_is_torchs_own():
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for found in rates("cosine", warmup=0):
        optimiser.step()
        theirs.step()
        assert found == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-12)


def test_linear_and_cosine_end_at_zero_and_stay_there():
    config = TrainConfig(learning_rate=0.3, schedule="linear", warmup=WARMUP)
    assert rates("linear")[-1] == 0 and rates("cosine")[-1] == pytest.approx(0, abs=1e-12)
    assert rate_at(STEPS + 9, config, total=STEPS) == 0
    middle = (STEPS + WARMUP) // 2
    assert rates("linear")[middle - 1] == pytest.approx(0.15)


def test_plateau_halving_halves():
    assert rates("plateau-halving", halvings=3)[-1] == pytest.approx(0.3 / 8)


def test_without_warm_up_the_first_step_is_at_full_rate():
    assert rates("constant", warmup=0) == [0.3] * STEPS
    assert math.isclose(rates("linear", warmup=0)[0], 0.3 * (1 - 1 / STEPS))


def test_a_schedule_that_falls_towards_an_unknown_end_is_refused():
    check_schedule(TrainConfig(schedule="constant"), None)
    check_schedule(TrainConfig(schedule="cosine"), STEPS)
    with pytest.raises(TrainingError, match="the schedule cosine falls to zero at the last") as no:
        check_schedule(TrainConfig(schedule="cosine"), None)
    assert no.value.hint == "--set steps=N says it"
