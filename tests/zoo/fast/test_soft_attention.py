"""Attention by softmax with gradients by hand, against the same in plain operators of torch."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.attention.attend import Attention, read
from saccade.zoo.attention.masks import masked_softmax
from saccade.zoo.attention.scores import AdditiveScore
from saccade.zoo.attention.select import SoftSelect
from saccade.zoo.fast.forms import plain_forms
from saccade.zoo.fast.soft_attention import (
    LARGEST_KEY,
    StepMemory,
    additive_step,
    exponentials_of,
)

BATCH, KEYS, D_QUERY, D_SCORE, D_VALUE = 3, 5, 13, 7, 11


@pytest.fixture
def given():
    """Query, keys, values, W, v, as leaves; of the last row nothing may be attended."""
    torch.manual_seed(0)
    shapes = (
        *((BATCH, D_QUERY), (BATCH, KEYS, D_SCORE), (BATCH, KEYS, D_VALUE)),
        *((D_SCORE, D_QUERY), (1, D_SCORE)),
    )
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False] * 5])[:, None]


def step(query, keys, values, weight, v, *, exponentials=None):
    memory = StepMemory(keys, values, MASK[:, 0], exponentials)
    return additive_step(query, memory, of_query=weight, v=v)


def plain(query, keys, values, weight, v):
    scores = torch.tanh(functional.linear(query, weight)[:, None] + keys) @ v[0]
    weights = scores[:, None].masked_fill(~MASK, torch.finfo(scores.dtype).min).softmax(-1) * MASK
    return weights @ values, weights


def test_context_and_weights_are_those_of_plain_operators(given):
    torch.testing.assert_close(tuple(step(*given)), plain(*given))


@pytest.mark.parametrize("of", [(0,), (1,), (0, 1)], ids=["context", "weights", "both"])
def test_every_gradient_is_that_of_plain_operators(given, of):
    def gradients(found):
        wanted = [torch.sin(torch.arange(found[i].numel()).double()).view_as(found[i]) for i in of]
        return torch.autograd.grad(
            [found[i] for i in of], given, wanted, allow_unused=True, materialize_grads=True
        )

    torch.testing.assert_close(gradients(step(*given)), gradients(plain(*given)))


def test_a_row_that_may_attend_to_nothing_reads_zeros_and_learns_nothing(given):
    context, weights = step(*given)
    assert (context[-1] == 0).all() and (weights[-1] == 0).all()
    context.sum().backward()
    assert all((each.grad[-1] == 0).all() for each in given[:3])


def test_very_large_sums_give_no_nan(given):
    query, keys, *others = given
    found = step(1e20 * query, 1e20 * keys, *others)
    found.context.sum().backward()
    assert found.context.isfinite().all() and all(x.grad.isfinite().all() for x in given)


def test_exponentials_of_the_keys_change_neither_weights_nor_gradients(given):
    exponentials = exponentials_of(given[1])
    assert exponentials is not None and not exponentials.requires_grad
    found = [step(*given), step(*given, exponentials=exponentials)]
    torch.testing.assert_close(*map(tuple, found))
    torch.testing.assert_close(
        *(torch.autograd.grad(each.context.sin().sum(), given) for each in found)
    )


@pytest.mark.parametrize("size", [1.0, 30.0, 1e20])
def test_exponentials_are_right_in_float32_for_any_query_and_the_largest_key(given, size):
    query, keys, *others = (each.detach().float() for each in given)
    keys *= LARGEST_KEY / keys.abs().max()
    found = step(size * query, keys, *others, exponentials=exponentials_of(keys))
    torch.testing.assert_close(tuple(found), plain(size * query, keys, *others))


@pytest.mark.parametrize("key", [LARGEST_KEY + 0.1, -LARGEST_KEY - 0.1, float("nan")])
def test_no_exponentials_are_made_of_keys_beyond_the_largest(given, key):
    keys = given[1].detach().clone()
    keys[1, 2, 3] = key
    assert exponentials_of(keys) is None


def test_automatic_mixed_precision_goes_through(given):
    """Rounded keys, an exact query: what comes out, and each gradient, is right to a few bits."""
    rounded = [each.detach().bfloat16() for each in given[1:3]]
    query, weight, v = (given[i].detach().float().requires_grad_() for i in (0, 3, 4))
    keys, values = (each.requires_grad_() for each in rounded)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = step(query, keys, values, weight, v)
    exact = plain(*given)
    torch.testing.assert_close(tuple(each.double() for each in found), exact, atol=0.03, rtol=0.02)
    found.context.sum().backward()
    exact[0].sum().backward()
    for each, wanted in zip((query, keys, values, weight, v), given, strict=True):
        torch.testing.assert_close(each.grad.double(), wanted.grad, atol=0.05, rtol=0.05)


def test_both_forms_of_the_masked_softmax_agree(assert_forms_agree):
    chance = torch.Generator().manual_seed(3)
    scores = torch.randn(BATCH, 2, KEYS, generator=chance, dtype=torch.float64).requires_grad_()
    assert_forms_agree(lambda x: masked_softmax(x, MASK), [scores])


def test_both_forms_of_the_read_agree(given, assert_forms_agree):
    chance = torch.Generator().manual_seed(4)
    weights = torch.rand(BATCH, 1, KEYS, generator=chance, dtype=torch.float64).requires_grad_()
    assert_forms_agree(read, [weights, given[2]])


@pytest.fixture
def attention():
    torch.manual_seed(5)
    score = AdditiveScore(d_query=D_QUERY, d_key=D_VALUE, d_hidden=D_SCORE)
    return Attention(score, SoftSelect()).double()


@pytest.mark.parametrize("n_queries", [1, 2])
def test_both_forms_of_additive_scores_agree(attention, given, n_queries, assert_forms_agree):
    chance = torch.Generator().manual_seed(6)
    query = torch.randn(BATCH, n_queries, D_QUERY, generator=chance, dtype=torch.float64)
    score = attention.score
    assert_forms_agree(
        lambda query, keys, *_: score(query, score.project(keys)),
        [query.requires_grad_(), given[2], *score.parameters()],
    )


@pytest.mark.parametrize("n_queries", [1, 2])
def test_both_forms_of_attention_agree(attention, given, n_queries, assert_forms_agree):
    chance = torch.Generator().manual_seed(6)
    query = torch.randn(BATCH, n_queries, D_QUERY, generator=chance, dtype=torch.float64)

    def attend(query, keys, *_):
        attended = attention(query, attention.remember(keys, mask=MASK[:, 0]))
        return attended.context, attended.weights

    assert_forms_agree(attend, [query.requires_grad_(), given[2], *attention.parameters()])


def test_the_plain_form_has_second_derivatives(attention, given):
    query, keys = given[0].detach()[:, None].requires_grad_(), given[2]

    def attend(query, keys):
        return attention(query, attention.remember(keys, mask=MASK[:, 0])).context

    with plain_forms():
        assert torch.autograd.gradgradcheck(attend, (query, keys))


def test_a_memory_made_in_one_form_can_be_asked_in_the_other(attention, given):
    query = given[0].detach()[:, None]
    prepared = attention.remember(given[2], mask=MASK[:, 0])
    with plain_forms():
        plain = attention.remember(given[2], mask=MASK[:, 0])
        expected = attention(query, prepared)
    assert prepared.exponentials is not None and plain.exponentials is None
    found = attention(query, plain)
    torch.testing.assert_close(found.context, expected.context)
    torch.testing.assert_close(found.weights, expected.weights)
