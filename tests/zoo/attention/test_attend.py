"""Attention: the worked examples people learn it from, and what holds for every pair of parts."""

from functools import partial

import pytest
import torch

from saccade.zoo.attention.attend import Attention
from saccade.zoo.attention.scores import DotScore, LinearConcatScore, make_score, score_names
from saccade.zoo.attention.select import (
    HardSelect,
    MeanSelect,
    SoftSelect,
    make_select,
    select_names,
)

# The lecture's three annotations, one a column there and one a row here, and its query.
ANNOTATIONS = torch.tensor([[[1.0, 3.0, 0.0], [0.0, 0.0, 1.0], [5.0, -1.0, 2.0]]])
QUERY = torch.tensor([[[1.0, 1.0, 0.0]]])


def linear_example() -> LinearConcatScore:
    score = LinearConcatScore(d_query=3, d_key=3)
    torch.nn.init.constant_(score.query_proj.weight, -1.0)
    torch.nn.init.constant_(score.key_proj.weight, 2.0)
    return score


def test_the_worked_example_of_linear_attention():
    attention = Attention(linear_example(), SoftSelect())
    memory = attention.remember(ANNOTATIONS)
    assert attention.score(QUERY, memory.keys).tolist() == [[[6.0, 0.0, 10.0]]]
    context, weights, *_ = attention(QUERY, memory)
    assert weights[0, 0].tolist() == pytest.approx([0.018, 0.00004, 0.982], abs=5e-4)
    assert context[0, 0].tolist() == pytest.approx([4.928, -0.928, 1.964], abs=5e-4)


def test_the_worked_example_of_average_pooling():
    attention = Attention(linear_example(), MeanSelect())
    context = attention(QUERY, attention.remember(ANNOTATIONS)).context
    assert context[0, 0].tolist() == pytest.approx([2, 2 / 3, 1])


def test_the_worked_example_of_dot_product_attention():
    # "I am a cat.": four states, and a query most like the third; weights [0, .05, .9, .05].
    states = torch.tensor([[[-4.0, 0.0], [0.0, 0.0], [2.89, 0.0], [0.0, 3.0]]])
    attention = Attention(DotScore(d_query=2, d_key=2), SoftSelect())
    weights = attention(torch.tensor([[[1.0, 0.0]]]), attention.remember(states)).weights
    assert [round(w, 2) for w in weights[0, 0].tolist()] == [0.0, 0.05, 0.9, 0.05]


PAIRS = [(score, select) for score in score_names() for select in select_names()]


@pytest.fixture
def make(make_inputs):
    return partial(attention_and_inputs, make_inputs(d_query=11, d_key=11))


def attention_and_inputs(inputs, score: str, select: str):
    torch.manual_seed(3)
    attention = Attention(make_score(score, d_query=11, d_key=11), make_select(select))
    return attention, inputs._replace(query=inputs.query[:, :1])


@pytest.mark.parametrize(("score", "select"), PAIRS)
def test_the_context_of_any_pair_is_the_weighted_sum_of_values_by_loops(make, score, select):
    attention, inputs = make(score, select)
    memory = attention.remember(inputs.keys, inputs.values, mask=inputs.mask)
    context, weights, *_ = attention(inputs.query, memory)
    for row in range(3):
        expected = sum(weights[row, 0, j] * inputs.values[row, j] for j in range(5))
        torch.testing.assert_close(context[row, 0], expected)


@pytest.mark.parametrize(("score", "select"), PAIRS)
@pytest.mark.parametrize("step", ["first", "later"])
def test_the_weights_of_any_pair_are_what_its_select_makes_of_its_scores(make, score, select, step):
    attention, inputs = make(score, select)
    elsewhere = torch.rand(3, 1, 5, generator=torch.Generator().manual_seed(4)).softmax(-1)
    previous = None if step == "first" else elsewhere
    keys, mask = attention.score.project(inputs.keys), inputs.mask[:, None]
    torch.manual_seed(5)
    back = [previous] if attention.score.looks_back else []
    scores = attention.score(inputs.query, keys, *back)
    back = [previous] if attention.select.looks_back else []
    expected = attention.select(scores, mask, *back)
    torch.manual_seed(5)
    memory = attention.remember(inputs.keys, mask=inputs.mask)
    found = attention(inputs.query, memory, previous=previous)
    torch.testing.assert_close(found.weights, expected.weights)
    assert (found.log_prob is None) == (expected.log_prob is None)


@pytest.mark.parametrize(("score", "select"), PAIRS)
def test_padding_changes_nothing_for_any_pair(make, score, select):
    attention, inputs = make(score, select)
    attention.eval()
    memory = attention.remember(inputs.keys, inputs.values, mask=inputs.mask)
    padded = attention.remember(
        torch.cat([inputs.keys, 9 * torch.ones(3, 2, 11)], 1),
        torch.cat([inputs.values, torch.full((3, 2, 13), torch.pi)], 1),
        mask=torch.cat([inputs.mask, torch.zeros(3, 2, dtype=torch.bool)], 1),
    )
    found, expected = attention(inputs.query, padded), attention(inputs.query, memory)
    torch.testing.assert_close(found.context, expected.context)
    torch.testing.assert_close(found.weights[..., :5], expected.weights)


@pytest.mark.parametrize("score", [name for name in score_names() if name != "mixed"])
def test_only_what_looks_back_is_changed_by_where_one_looked(make, score):
    attention, inputs = make(score, "soft")
    memory = attention.remember(inputs.keys, mask=inputs.mask)
    elsewhere = torch.rand(3, 1, 5)
    first, second = (attention(inputs.query, memory, previous=p) for p in (None, elsewhere))
    assert torch.equal(first.weights, second.weights)


def test_keys_are_projected_once_a_sentence_not_once_a_step(inputs):
    attention = Attention(make_score("additive", d_query=7, d_key=11), SoftSelect())
    calls = []
    attention.score.key_proj.register_forward_hook(lambda *_: calls.append(1))
    memory = attention.remember(inputs.keys, mask=inputs.mask)
    for _ in range(3):
        attention(inputs.query[:, :1], memory)
    assert len(calls) == 1
    assert memory.exponentials is not None
    assert Attention(attention.score, HardSelect()).remember(inputs.keys).exponentials is None


def test_several_queries_of_a_single_row_are_all_answered(inputs):
    attention = Attention(make_score("additive", d_query=7, d_key=11), SoftSelect())
    memory = attention.remember(inputs.keys[:1], inputs.values[:1])
    together = attention(inputs.query[:1], memory)
    one_by_one = [attention(inputs.query[:1, [i]], memory) for i in range(inputs.query.shape[1])]
    torch.testing.assert_close(together.weights, torch.cat([one.weights for one in one_by_one], 1))
    torch.testing.assert_close(together.context, torch.cat([one.context for one in one_by_one], 1))


def test_values_are_the_keys_and_all_may_be_attended_unless_told(inputs):
    attention = Attention(make_score("bilinear", d_query=7, d_key=11), SoftSelect())
    memory = attention.remember(inputs.keys)
    assert memory.values is inputs.keys
    assert memory.mask.dtype == torch.bool and memory.mask.all()


def test_the_chance_of_a_hard_choice_is_handed_on(inputs):
    attention = Attention(make_score("additive", d_query=7, d_key=11), HardSelect())
    attended = attention(inputs.query, attention.remember(inputs.keys, mask=inputs.mask))
    assert attended.log_prob.shape == attended.entropy.shape == (3, 2)
    assert attended.log_prob.requires_grad
    soft = Attention(attention.score, SoftSelect())
    assert soft(inputs.query, soft.remember(inputs.keys)).log_prob is None


def test_the_order_of_the_memory_does_not_matter_to_content(inputs):
    attention = Attention(make_score("additive", d_query=7, d_key=11), SoftSelect())
    order = torch.tensor([3, 0, 4, 1, 2])
    context = attention(inputs.query, attention.remember(inputs.keys, inputs.values)).context
    shuffled = attention.remember(inputs.keys[:, order], inputs.values[:, order])
    torch.testing.assert_close(attention(inputs.query, shuffled).context, context)
