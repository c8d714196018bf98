"""Path patching: exact against runs that are patched by hand, first order against differences."""

import copy

import pytest
import torch
from families import tiny

from saccade.errors import UsageError
from saccade.interp.effects.paths import PathGradients, path_effects
from saccade.interp.effects.positions import HeadAt, Row, RowChange, position_effects, run_rows
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate, Patch, intervene
from saccade.interp.heads.model import wrap_model

TARGET = Target(7, 11)


def path_by_hand(model, ids, head, through, values):
    """The loss of the score, with every head between the two patched to its plain activation."""
    plain = capture(model, ids).z
    first = [Ablate(head.layer, head.head, "mean", values[head.layer][head.head],
                    positions=list(head.positions))]  # fmt: skip
    for at in model.layers:
        if head.layer < at.index < through.layer:
            first += [Patch(at.index, h, plain[at.index][0, :, h]) for h in range(at.n_heads)]
    with intervene(model, first, may_do_nothing=True):
        reached = capture(model, ids).z[through.layer][0, list(through.positions), through.head]
    patch = Patch(through.layer, through.head, reached, positions=list(through.positions))
    before = TARGET.score(model.hf(ids).logits[0, -1])
    with intervene(model, patch, may_do_nothing=True):
        return float(before - TARGET.score(model.hf(ids).logits[0, -1]))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_neox", "bloom"])
def test_an_exact_path_is_what_patching_by_hand_gives(wrapped, ids, replacement, family):
    model, values = wrapped(family), replacement(wrapped(family))
    through = HeadAt(2, 1, (10,))
    heads = [HeadAt(0, 2, (4,)), HeadAt(1, 0, (10,)), HeadAt(0, 1, (3, 7))]
    found = path_effects(model, ids[:1], heads, through, replacement=values, target=TARGET)
    for head in heads:
        expected = path_by_hand(model, ids[:1], head, through, values.heads)
        assert found[head].on_token == pytest.approx(expected, abs=2e-4)
    assert max(abs(each.on_token) for each in found.values()) > 1e-3


def test_a_path_through_a_head_at_all_positions_contains_those_at_one(llama, ids, replacement):
    values, head = replacement(llama), HeadAt(0, 2, (4,))
    everywhere = path_effects(
        llama, ids[:1], [head], HeadAt(2, 1), replacement=values, target=TARGET
    )[head]
    listed = path_effects(
        llama, ids[:1], [head], HeadAt(2, 1, tuple(range(11))), replacement=values, target=TARGET
    )[head]
    assert everywhere.on_token == pytest.approx(listed.on_token, abs=1e-6)


def test_a_head_cannot_go_through_an_earlier_one(llama, ids, replacement):
    with pytest.raises(UsageError, match=r"head 2\.0 is not before 2\.1"):
        path_effects(
            llama, ids[:1], [HeadAt(2, 0, (1,))], HeadAt(2, 1), replacement=replacement(llama)
        )


@pytest.fixture(scope="module")
def exact():
    """A tiny model in float64, for differences; Llama's norms would round to float32."""
    return wrap_model(copy.deepcopy(tiny("gpt2")).double(), None, name="double")


@pytest.fixture
def values(exact):
    generator = torch.Generator().manual_seed(5)
    return Replacement(
        "mean",
        {at.index: torch.randn(at.n_heads, at.d_head, generator=generator) for at in exact.layers},
    )


def small_step(model, ids, head, values, size):
    """The activation of a head moved a little towards its replacement."""
    z = capture(model, ids).z[head.layer][0, list(head.positions), head.head]
    moved = z + size * (values.heads[head.layer][head.head].to(z) - z)
    return RowChange(head.layer, (head.head,), moved[:, None], head.positions)


def test_the_gradient_along_a_path_is_its_finite_difference(exact, ids, values):
    ids = ids[:1]
    paths = PathGradients.record(exact, ids, TARGET, replacement=values)
    head, step = HeadAt(0, 2, (3,)), 1e-4
    through = paths.through(2, 1, 10)
    plain = capture(exact, ids).z
    held = RowChange(1, tuple(range(3)), plain[1][0])
    rows = [Row((small_step(exact, ids, head, values, size), held)) for size in (step, -step)]
    z = run_rows(exact, ids, rows, at=[10], keep=[2], until=2).z[2][:, 0, 1]
    slope = (z[1] - z[0]) @ paths.gradient[2][10, 1] / (2 * step)
    assert float(through[0][3, 2]) == pytest.approx(float(slope), rel=1e-4)


def test_the_whole_attribution_is_its_finite_difference(exact, ids, values):
    ids, step = ids[:1], 1e-4
    paths = PathGradients.record(exact, ids, TARGET, replacement=values)
    for head in (HeadAt(0, 2, (3,)), HeadAt(1, 0, (10,)), HeadAt(2, 1, (10,))):
        rows = [Row((small_step(exact, ids, head, values, size),)) for size in (step, -step)]
        states = run_rows(exact, ids, rows, at=[-1]).states[:, 0]
        up, down = TARGET.score(exact.unembedding.logits(states)).tolist()
        found = paths.attribution[head.layer][head.positions[0], head.head]
        assert float(found) == pytest.approx((down - up) / (2 * step), rel=1e-4)


def test_direct_paths_and_paths_through_later_heads_add_up_to_the_attribution(exact, ids, values):
    paths = PathGradients.record(exact, ids[:1], TARGET, replacement=values)
    total = {layer: each.clone() for layer, each in paths.direct().items()}
    for at in exact.layers:
        for head in range(at.n_heads):
            for position in range(ids.shape[1]):
                for layer, each in paths.through(at.index, head, position).items():
                    total[layer] += each
    for layer, each in paths.attribution.items():
        torch.testing.assert_close(total[layer], each)


def test_a_direct_path_of_another_position_gives_nothing(exact, ids, values):
    direct = PathGradients.record(exact, ids[:1], TARGET, replacement=values, at=6).direct()
    for each in direct.values():
        assert bool((each[6] != 0).all())
        assert not bool(each[:6].any() or each[7:].any())


def test_first_order_is_the_exact_effect_of_a_small_change(exact, ids, values):
    """Attribution, direct and through, for a replacement close to the activation."""
    ids = ids[:1]
    plain = capture(exact, ids).z
    near = Replacement(
        "prompt",
        {layer: z[0] + 1e-3 * (values.heads[layer].to(z) - z[0]) for layer, z in plain.items()},
    )
    paths = PathGradients.record(exact, ids, TARGET, replacement=near)
    head, through = HeadAt(0, 2, (4,)), HeadAt(2, 0, (10,))
    path = path_effects(exact, ids, [head], through, replacement=near, target=TARGET)[head]
    assert float(paths.through(2, 0, 10)[0][4, 2]) == pytest.approx(path.on_token, rel=0.05)
    whole = position_effects(exact, ids, [head], replacement=near, target=TARGET)[head]
    assert float(paths.attribution[0][4, 2]) == pytest.approx(whole.on_token, rel=0.05)
