"""First-order attribution is the derivative it claims to be, and the integral of it the effect."""

import copy

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.interp.heads.model import wrap_model
from saccade.interp.studies.fidelity.ablation_check import (
    AT_TEXT,
    Rule,
    check_ablation,
    first_order,
    gauss_legendre,
    rules_of,
    slope,
    step_size,
)
from saccade.interp.studies.fidelity.stage import Stage

WINDOWS, WINDOW, HEAD = 3, 13, 5


@pytest.fixture(scope="module", params=[0, 3])
def stage(stories, unseen, request):
    return Stage.of(stories, unseen.windows[:WINDOWS, :WINDOW], request.param)


@pytest.fixture(scope="module")
def exact_stage(stories, unseen):
    """In double precision, where only the curvature is left of the error."""
    hf = copy.deepcopy(stories.hf).double()
    model = wrap_model(hf, stories.tokenizer, name="double")
    return Stage.of(model, unseen.windows[:WINDOWS, :WINDOW], 2)


def removed(stage):
    return stage.mean[HEAD].expand_as(stage.rerun.z[:, :, HEAD])


def by_forward_mode(stage, activation, point):
    """torch's own Jacobian-vector product; fused attention has none."""
    start = stage.rerun.z[:, :, HEAD]
    way = activation.to(start) - start
    with sdpa_kernel(SDPBackend.MATH):
        found = torch.func.jvp(
            lambda s: stage.answer(HEAD, start + s * way),
            (torch.tensor(point, dtype=start.dtype),),
            (torch.ones((), dtype=start.dtype),),
        )
    return found[1]


# torch scripts its own formulas when forward mode is first used.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("point", [0.0, 0.5, 0.9])
def test_the_slope_is_torchs_jacobian_vector_product(stage, point):
    expected = by_forward_mode(stage, removed(stage), point)
    found = slope(stage, HEAD, removed(stage), point)
    assert expected.norm() > 0
    assert (found - expected).norm() / expected.norm() < 0.01


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_in_double_precision_it_agrees_to_more_digits(exact_stage):
    expected = by_forward_mode(exact_stage, removed(exact_stage), 0.0)
    found = slope(exact_stage, HEAD, removed(exact_stage), 0.0)
    assert (found - expected).norm() / expected.norm() < 1e-3


def test_the_step_is_coarser_where_numbers_are():
    steps = [step_size(d) for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)]
    assert steps == sorted(steps) and steps[0] == steps[1]
    assert 0.005 < steps[1] < 0.03 and steps[3] < 0.5


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_rule_of_n_points_integrates_polynomials_of_degree_2n_minus_1(n):
    _, points, weights = gauss_legendre(n)
    for degree in range(2 * n):
        found = sum(w * x**degree for x, w in zip(points, weights, strict=True))
        assert found == pytest.approx(1 / (degree + 1))
    past = sum(w * x ** (2 * n) for x, w in zip(points, weights, strict=True))
    assert past != pytest.approx(1 / (2 * n + 1), rel=1e-3)


def test_more_points_come_closer_to_the_exact_change(stage):
    rules = (AT_TEXT, *(gauss_legendre(n) for n in (1, 2, 4)))
    exact = stage.answer(HEAD, removed(stage)) - stage.before
    found = first_order(stage, HEAD, removed(stage), rules)
    errors = [float((found[rule.name] - exact).norm() / exact.norm()) for rule in rules]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 0.02


def test_rules_share_their_points_and_runs_are_counted(stage):
    ticks = []
    rules = (AT_TEXT, Rule("again", (0.0, 0.5), (0.5, 0.5)), gauss_legendre(1))
    found = first_order(stage, HEAD, removed(stage), rules, tick=lambda: ticks.append(1))
    assert len(ticks) == 4  # two sides of two points
    mean = (found[AT_TEXT.name] + found["gradient half-way"]) / 2
    torch.testing.assert_close(found["again"], mean)


def test_attribution_is_checked_like_a_lens_and_knows_this_text(stage, story_lenses):
    lens = {"lens": story_lenses.by_layer[stage.layer]}
    ticks = []
    found = check_ablation(
        stage, lens, rules=rules_of(2), heads=[HEAD], tick=lambda: ticks.append(1)
    )
    assert list(found) == ["lens", "gradient at the text", "gradient at 2 points"]
    assert len(ticks) == 2 * (1 + 2 * 3)
    at_text, between = (found[rule.name].correlation(0).value for rule in rules_of(2))
    assert found["lens"].correlation(0).value < at_text < between <= 1
    assert between > 0.98
    assert found["gradient at 2 points"].alignment(0).value > 0.9
    assert rules_of(0) == ()
