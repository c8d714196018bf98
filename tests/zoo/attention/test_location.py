"""Scores that know positions: what they see, and what they refuse."""

import pytest
import torch
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.attention.scores import LocationScore, MixedScore


def test_the_location_score_does_not_see_what_stands_there(inputs):
    score = LocationScore(d_query=7, max_length=19)
    assert torch.equal(score(inputs.query, inputs.keys), score(inputs.query, -inputs.keys))


def test_the_location_score_refuses_keys_beyond_its_reach(inputs):
    score = LocationScore(d_query=7, max_length=3)
    with pytest.raises(UsageError, match="has 3 positions, got 5 keys") as raised:
        score(inputs.query, inputs.keys)
    assert "max_length=5" in raised.value.hint


@pytest.fixture
def mixed():
    torch.manual_seed(2)
    return MixedScore(d_query=7, d_key=11, d_hidden=17, n_filters=2, reach=1)


def test_the_mixed_score_adds_features_of_the_weights_before_by_loops(mixed, inputs):
    query, previous = inputs.query[:, :1], torch.rand(3, 1, 5)
    found = mixed(query, mixed.project(inputs.keys), previous)
    padded = functional.pad(previous, (1, 1))
    for row in range(3):
        for j in range(5):
            around = padded[row, 0, j : j + 3]  # one to the left, itself, one to the right
            features = torch.stack([filter_ @ around for filter_ in mixed.filters.weight[:, 0]])
            hidden = (
                mixed.query_proj(query[row, 0])
                + mixed.key_proj(inputs.keys[row, j])
                + mixed.feature_proj(features)
            )
            expected = mixed.score_proj(hidden.tanh())[0]
            torch.testing.assert_close(found[row, 0, j], expected)


def test_having_looked_nowhere_is_like_the_first_step(mixed, inputs):
    projected = mixed.project(inputs.keys)
    nowhere = torch.zeros(3, 1, 5)
    first = mixed(inputs.query[:, :1], projected)
    torch.testing.assert_close(mixed(inputs.query[:, :1], projected, nowhere), first)


def test_the_mixed_score_moves_with_the_weights_before(mixed):
    # All keys alike: only where one looked before can make a difference, and it moves along.
    keys = torch.ones(2, 13, 11)
    query = torch.randn(2, 1, 7)
    at = torch.eye(13)
    early = mixed(query, mixed.project(keys), at[4].expand(2, 1, 13))
    late = mixed(query, mixed.project(keys), at[7].expand(2, 1, 13))
    torch.testing.assert_close(early[..., 1:9], late[..., 4:12])
    assert (early[..., 3:6].std(-1) > 0).all()


def test_the_mixed_score_learns_through_the_weights_before(mixed, inputs):
    previous = torch.rand(3, 1, 5, requires_grad=True)
    mixed(inputs.query[:, :1], mixed.project(inputs.keys), previous).sum().backward()
    assert previous.grad.abs().sum() > 0


def test_the_mixed_score_refuses_several_queries(mixed, inputs):
    with pytest.raises(UsageError, match="one query at a time, got 2"):
        mixed(inputs.query, mixed.project(inputs.keys))
