"""What every select promises, and each by its definition."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.attention.select import (
    _SELECTS,
    GumbelSelect,
    HardSelect,
    MeanSelect,
    MonotonicSelect,
    SoftSelect,
    make_select,
    register_select,
    select_names,
)

KINDS = {
    "gumbel": GumbelSelect,
    "hard": HardSelect,
    "mean": MeanSelect,
    "monotonic": MonotonicSelect,
    "soft": SoftSelect,
}


@pytest.fixture
def scores():
    return 2 * torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mask():
    """The last row may attend to nothing."""
    return (torch.arange(7) < torch.tensor([7, 5, 3, 1, 0])[:, None])[:, None]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", select_names())
def test_masked_weights_are_zero_and_no_row_has_more_than_one_in_all(name, training, scores, mask):
    torch.manual_seed(1)
    weights = make_select(name).train(training)(scores, mask).weights
    assert weights.shape == scores.shape and weights.dtype == scores.dtype
    assert (weights >= 0).all()
    assert (weights[~mask.expand_as(weights)] == 0).all()
    total = weights.sum(-1)
    assert (total < 1 + 1e-5).all()
    if name != "monotonic":  # that one may walk off the end
        torch.testing.assert_close(total, mask.any(-1).float().expand(5, 3))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", select_names())
def test_no_select_makes_nan_on_the_way_back(name, training, scores, mask):
    torch.manual_seed(1)
    select = make_select(name).train(training)
    scores = scores.requires_grad_()
    selected = select(scores, mask)
    loss = (selected.weights * torch.randn(5, 3, 7)).sum() + 0 * scores.sum()
    if selected.log_prob is not None:
        loss = loss + selected.log_prob.sum() + selected.entropy.sum()
    loss.backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[~mask.expand_as(scores)] == 0).all()


@pytest.mark.parametrize("name", select_names())
def test_padding_changes_nothing_in_evaluation(name, scores, mask):
    select = make_select(name).eval()
    longer = torch.cat([scores, torch.full((5, 3, 2), 50.0)], -1)
    wider = torch.cat([mask, torch.zeros(5, 1, 2, dtype=torch.bool)], -1)
    weights = select(longer, wider).weights
    torch.testing.assert_close(weights[..., :7], select(scores, mask).weights)


@pytest.mark.parametrize("name", select_names())
def test_evaluation_is_deterministic(name, scores, mask):
    select = make_select(name).eval()
    assert torch.equal(select(scores, mask).weights, select(scores, mask).weights)


@pytest.mark.parametrize("name", select_names())
def test_a_mask_may_differ_from_query_to_query(name, scores):
    torch.manual_seed(1)
    mask = torch.rand(5, 3, 7) < 0.5
    weights = make_select(name)(scores, mask).weights
    assert (weights[~mask] == 0).all()


@pytest.mark.parametrize("name", select_names())
def test_every_name_makes_its_kind(name):
    assert type(make_select(name)) is KINDS[name]


def test_an_unknown_select_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="no select 'sotf': known are gumbel, hard, ") as raised:
        make_select("sotf")
    assert raised.value.hint == "did you mean 'soft'?"


def test_a_select_of_ones_own_is_known_by_its_name():
    @register_select("mine")
    class Mine(SoftSelect):
        pass

    try:
        assert "mine" in select_names() and type(make_select("mine")) is Mine
    finally:
        del _SELECTS["mine"]


def test_soft_is_torchs_softmax_where_nothing_is_masked(scores):
    mask = torch.ones(5, 1, 7, dtype=torch.bool)
    torch.testing.assert_close(SoftSelect()(scores, mask).weights, scores.softmax(-1))


def test_mean_gives_each_key_its_share_whatever_the_scores(scores, mask):
    weights = MeanSelect()(scores, mask).weights
    for row, n in enumerate([7, 5, 3, 1]):
        expected = torch.tensor([1 / n] * n + [0.0] * (7 - n))
        torch.testing.assert_close(weights[row], expected.expand(3, 7))
