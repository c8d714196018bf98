"""The tuned lens starts as the logit lens and is solved as least squares."""

import sys
from pathlib import Path

import pytest
import torch

from saccade.errors import LensError, UsageError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.model import wrap_model
from saccade.interp.lenses.lens import activation_at
from saccade.interp.lenses.residual_lenses import (
    LogitLens,
    ResidualStatistics,
    TunedLens,
    solve_tuned,
    tuned_from,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "heads"))

from families import VOCAB, tiny

BATCH, LENGTH, LAYER = 7, 23, 0


@pytest.fixture(scope="module")
def model():
    return wrap_model(tiny("llama"), None, name="llama")


@pytest.fixture(scope="module")
def ids():
    return torch.randint(3, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def captured(model, ids):
    return capture(model, ids, residual=True)


@pytest.fixture
def statistics(model, captured):
    statistics = ResidualStatistics.empty(model)
    statistics.add(captured)
    return statistics


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "cohere"])
def test_untrained_it_is_the_logit_lens(family, ids):
    model = wrap_model(tiny(family), None, name=family)
    activation = activation_at(model, capture(model, ids, residual=True), LAYER, "residual")
    tuned, logit = (kind.start(model, LAYER) for kind in (TunedLens, LogitLens))
    assert torch.equal(tuned(activation), logit(activation))


def test_only_the_translator_is_learnt_and_saved(model):
    lens = TunedLens.start(model, LAYER)
    assert {name for name, _ in lens.named_parameters()} == set(lens.state_dict())
    assert set(lens.state_dict()) == {"translator.weight", "translator.bias"}


def test_it_can_be_trained_by_gradients(model, captured):
    lens = TunedLens.start(model, LAYER)
    activation = activation_at(model, captured, LAYER, "residual")
    lens(activation).log_softmax(-1)[..., 5].mean().neg().backward()
    assert lens.translator.weight.grad.abs().max() > 0


def by_lstsq(captured, layer: int, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Least squares on the stacked data; the ridge as extra rows, the bias as a column of ones."""
    r = captured.residual[layer].flatten(0, 1).double()
    final = captured.final_residual.flatten(0, 1).double()
    n, d = r.shape
    strength = (ridge * r.var(0, correction=0).mean() * n) ** 0.5
    rows = torch.cat([r, strength * torch.eye(d, dtype=r.dtype)])
    ones = torch.cat([torch.ones(n, 1), torch.zeros(d, 1)]).double()
    right = torch.cat([final - r, torch.zeros(d, d)])
    solved = torch.linalg.lstsq(torch.cat([rows, ones], dim=1), right).solution
    return solved[:-1].T, solved[-1]


@pytest.mark.parametrize("ridge", [0.0, 0.03])
def test_the_solution_is_least_squares_on_the_stacked_data(statistics, captured, ridge):
    for layer, (weight, bias) in statistics.solve(ridge=ridge).items():
        expected_weight, expected_bias = by_lstsq(captured, layer, ridge)
        torch.testing.assert_close(weight, expected_weight, atol=1e-7, rtol=1e-6)
        torch.testing.assert_close(bias, expected_bias, atol=1e-7, rtol=1e-6)


def test_the_solved_lens_predicts_the_final_stream_better_than_the_stream_does(
    model, statistics, captured
):
    lens = tuned_from(model, statistics)[LAYER]
    r, final = captured.residual[LAYER], captured.final_residual
    translated = r + lens.translator(r)
    assert (translated - final).square().mean() < 0.7 * (r - final).square().mean()


def test_after_the_last_layer_there_is_nothing_to_translate(model, statistics):
    weight, bias = statistics.solve()[model.layers[-1].index]
    torch.testing.assert_close(weight, torch.zeros_like(weight), atol=1e-9, rtol=0)
    torch.testing.assert_close(bias, torch.zeros_like(bias), atol=1e-9, rtol=0)


def test_shards_merge_into_what_one_pass_gives(model, ids, statistics):
    merged = ResidualStatistics.empty(model)
    for shard in ids.split([2, 5]):
        part = ResidualStatistics.empty(model)
        part.add(capture(model, shard, residual=True))
        merged = merged.merge(part)
    assert merged.n == statistics.n == BATCH * LENGTH
    for name, total in statistics.sums.items():
        torch.testing.assert_close(merged.sums[name], total, atol=1e-4, rtol=1e-6)


def test_solving_from_batches_is_solving_from_their_statistics(model, ids):
    statistics = ResidualStatistics.empty(model)
    statistics.add(capture(model, ids, residual=True), model.is_text(ids))
    whole = tuned_from(model, statistics, ridge=0.1)
    batched = solve_tuned(model, ids.split(3), ridge=0.1)
    assert whole.keys() == batched.keys()
    for layer, lens in whole.items():
        for name, value in lens.state_dict().items():
            torch.testing.assert_close(batched[layer].state_dict()[name], value, atol=1e-4, rtol=0)


def test_less_text_than_features_without_a_ridge_still_gives_a_lens(model, ids):
    for lens in solve_tuned(model, [ids[:2, :5]], ridge=0.0).values():
        assert lens.translator.weight.isfinite().all()


def test_what_cannot_be_solved_or_merged_is_refused(model, ids, statistics):
    with pytest.raises(UsageError, match="no text was seen"):
        ResidualStatistics.empty(model).solve()
    with pytest.raises(UsageError, match="does not contain the residual stream of layers"):
        statistics.add(capture(model, ids))
    other = wrap_model(tiny("gpt2"), None, name="gpt2")
    with pytest.raises(LensError, match="different layers or sizes"):
        statistics.merge(ResidualStatistics.empty(other))
