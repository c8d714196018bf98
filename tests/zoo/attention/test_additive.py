"""The additive score, with gradients of its own, against the same written out plainly."""

import pytest
import torch

from saccade.zoo.attention.scores import AdditiveScore


def plain(score: AdditiveScore, query, keys):
    hidden = score.query_proj(query)[:, :, None] + score.key_proj(keys)[:, None]
    return score.score_proj(torch.tanh(hidden)).squeeze(-1)


@pytest.fixture
def score():
    torch.manual_seed(0)
    return AdditiveScore(d_query=7, d_key=11, d_hidden=17)


@pytest.mark.parametrize("n_queries", [1, 2])
def test_scores_and_gradients_are_those_of_autograd(score, inputs, n_queries):
    wanted = torch.randn(3, n_queries, 5, generator=torch.Generator().manual_seed(1))
    results = []
    for how in (plain, lambda score, q, k: score(q, score.project(k))):
        query = inputs.query[:, :n_queries].clone().requires_grad_()
        keys = inputs.keys.clone().requires_grad_()
        scores = how(score, query, keys)
        leaves = (query, keys, *score.parameters())
        results.append((scores, torch.autograd.grad((scores * wanted).sum(), leaves)))
    torch.testing.assert_close(results[1], results[0], atol=1e-6, rtol=1e-5)


def test_gradients_of_several_steps_add_up_in_the_keys(score, inputs):
    keys = inputs.keys.clone().requires_grad_()
    projected = score.project(keys)
    steps = [score(inputs.query[:, t : t + 1], projected) for t in (0, 1, 0)]
    torch.cat(steps, 1).square().sum().backward()
    found, keys.grad = keys.grad, None
    plain(score, inputs.query[:, [0, 1, 0]], keys).square().sum().backward()
    torch.testing.assert_close(found, keys.grad)


def test_the_projected_keys_are_left_as_they_were(score, inputs):
    projected = score.project(inputs.keys).detach()
    before = projected.clone()
    score(inputs.query, projected)
    assert torch.equal(projected, before)


def test_a_second_derivative_is_refused_not_wrong(score, inputs):
    query = inputs.query.clone().requires_grad_()
    scores = score(query, score.project(inputs.keys))
    (first,) = torch.autograd.grad(scores.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_kept(score, inputs, dtype):
    score.to(dtype)
    query, keys = inputs.query.to(dtype).requires_grad_(), inputs.keys.to(dtype)
    scores = score(query, score.project(keys))
    scores.sum().backward()
    assert scores.dtype == query.grad.dtype == dtype


def test_automatic_mixed_precision_goes_through(score, inputs):
    query = inputs.query.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score(query, score.project(inputs.keys))
    scores.float().sum().backward()
    exact = plain(score, inputs.query, inputs.keys)
    torch.testing.assert_close(scores.float(), exact, atol=0.03, rtol=0)
    assert query.grad.isfinite().all()


def test_other_queries_prefer_other_keys_unlike_under_the_linear_score(score, inputs):
    scores = score(inputs.query, score.project(inputs.keys))
    difference = scores[:, 0] - scores[:, 1]
    assert (difference.std(-1) > 0.01).all()
