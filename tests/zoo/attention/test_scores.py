"""Every score against its formula, written as loops over batch, queries and keys."""

import math

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.attention.masks import masked_softmax
from saccade.zoo.attention.scores import (
    _SCORES,
    AdditiveScore,
    BilinearScore,
    CosineScore,
    DotScore,
    LinearConcatScore,
    LocationScore,
    MixedScore,
    ScaledDotScore,
    make_score,
    register_score,
    score_names,
)

ONE_SIZE = {"cosine", "dot", "scaled-dot"}
KINDS = {
    "additive": AdditiveScore,
    "bilinear": BilinearScore,
    "cosine": CosineScore,
    "dot": DotScore,
    "linear-concat": LinearConcatScore,
    "location": LocationScore,
    "mixed": MixedScore,
    "scaled-dot": ScaledDotScore,
}


def one_by_one(name, score, q, k, j):
    """The score of key number j by its formula, with plain vectors."""
    weights = dict(score.named_parameters())
    if name == "dot":
        return sum(a * b for a, b in zip(q, k, strict=True))
    if name == "scaled-dot":
        return sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(k))
    if name == "cosine":
        strength = weights["log_strength"].exp()
        return strength * (q @ k) / math.sqrt(q @ q) / math.sqrt(k @ k)
    if name == "bilinear":
        return q @ weights["key_proj.weight"] @ k
    if name == "linear-concat":
        return torch.cat([weights[f"{x}_proj.weight"][0] for x in ("query", "key")]) @ torch.cat(
            [q, k]
        )
    if name == "location":
        return (weights["position_proj.weight"] @ q)[j]
    hidden = weights["query_proj.weight"] @ q + weights["key_proj.weight"] @ k
    if name == "mixed":
        hidden = hidden + weights["key_proj.bias"]
    return weights["score_proj.weight"][0] @ hidden.tanh()


@pytest.fixture
def made(name, make_inputs):
    torch.manual_seed(1)
    d_query = 11 if name in ONE_SIZE else 7
    score = make_score(name, d_query=d_query, d_key=11, d_hidden=17)
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    inputs = make_inputs(d_query=d_query)
    # The mixed score takes one query at a time.
    return score, inputs._replace(query=inputs.query[:, :1]) if name == "mixed" else inputs


@torch.no_grad()
@pytest.mark.parametrize("name", score_names())
def test_a_score_is_its_formula_by_loops(name, made):
    score, inputs = made
    found = score(inputs.query, score.project(inputs.keys))
    assert found.shape == (3, inputs.query.shape[1], 5)
    for row in range(3):
        for query in range(inputs.query.shape[1]):
            for j in range(5):
                q, k = inputs.query[row, query], inputs.keys[row, j]
                expected = one_by_one(name, score, q, k, j)
                torch.testing.assert_close(found[row, query, j], torch.as_tensor(expected))


@pytest.mark.parametrize("name", score_names())
def test_all_queries_at_once_are_each_query_alone(name, made):
    score, inputs = made
    projected = score.project(inputs.keys)
    together = score(inputs.query, projected)
    for query in range(inputs.query.shape[1]):
        alone = score(inputs.query[:, query : query + 1], projected)
        torch.testing.assert_close(together[:, query : query + 1], alone)


@pytest.mark.parametrize("name", score_names())
def test_gradients_are_right_by_finite_differences(name, made):
    score, inputs = made
    score.double()
    query, keys = inputs.query.double().requires_grad_(), inputs.keys.double().requires_grad_()
    parameters = tuple(score.parameters())

    def scores_of(query, keys, *parameters):
        return score(query, score.project(keys))

    assert torch.autograd.gradcheck(scores_of, (query, keys, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", score_names())
def test_every_name_makes_its_kind(name):
    assert type(make_score(name, d_query=11, d_key=11)) is KINDS[name]


def test_the_hidden_layer_is_as_large_as_a_query_unless_told():
    assert make_score("additive", d_query=7, d_key=11).key_proj.out_features == 7
    assert make_score("additive", d_query=7, d_key=11, d_hidden=3).key_proj.out_features == 3


@pytest.mark.parametrize("name", sorted(ONE_SIZE))
def test_scores_that_compare_number_by_number_refuse_two_sizes(name):
    message = f"the {name} score needs queries and keys of one size, got d_query=7 and d_key=11"
    with pytest.raises(UsageError, match=message) as raised:
        make_score(name, d_query=7, d_key=11)
    assert "bilinear" in raised.value.hint


def test_an_unknown_score_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="no score 'aditive': known are additive, ") as raised:
        make_score("aditive", d_query=7, d_key=11)
    assert raised.value.hint == "did you mean 'additive'?"
    with pytest.raises(UsageError) as raised:
        make_score("xyz", d_query=7, d_key=11)
    assert raised.value.hint == "choose one of these"


def test_a_score_of_ones_own_is_known_by_its_name():
    @register_score("mine")
    def mine(sizes):
        return LocationScore(d_query=sizes.d_query, max_length=sizes.max_length)

    try:
        assert "mine" in score_names()
        score = make_score("mine", d_query=7, d_key=11, max_length=3)
        assert score.position_proj.weight.shape == (3, 7)
    finally:
        del _SCORES["mine"]


def test_under_a_softmax_the_linear_score_does_not_see_the_query(inputs):
    score = make_score("linear-concat", d_query=7, d_key=11)
    projected = score.project(inputs.keys)
    mask = inputs.mask[:, None]
    weights = masked_softmax(score(inputs.query, projected), mask)
    others = masked_softmax(score(-5 * inputs.query, projected), mask)
    torch.testing.assert_close(weights, others)


def test_a_silent_key_or_query_leaves_the_cosine_score_finite():
    score = make_score("cosine", d_query=3, d_key=3)
    query = torch.zeros(2, 1, 3, requires_grad=True)
    keys = torch.zeros(2, 5, 3, requires_grad=True)
    found = score(query, score.project(keys))
    found.sum().backward()
    assert (found == 0).all()
    assert query.grad.isfinite().all() and keys.grad.isfinite().all()


def test_no_key_scores_above_the_strength_and_the_same_direction_reaches_it(make_inputs):
    score = make_score("cosine", d_query=7, d_key=7)
    torch.nn.init.constant_(score.log_strength, math.log(3))
    inputs = make_inputs(d_query=7, d_key=7)
    keys = torch.cat([inputs.keys, 100 * inputs.query[:, :1]], 1)
    found = score(inputs.query, score.project(keys))
    assert (found < 3 + 1e-5).all()
    torch.testing.assert_close(found[:, 0, -1], torch.full((3,), 3.0))
