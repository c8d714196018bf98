"""Hard selection: drawn with the softmax's probabilities, scored with their logarithm."""

import torch

from saccade.zoo.attention.select import HardSelect

SCORES = torch.tensor([[0.0, 1.0, 2.0], [1.0, -1.0, 0.5]])
MASK = torch.tensor([[True, True, True], [True, False, True]])


def many(n: int = 20011):
    return SCORES[:, None].expand(2, n, 3), MASK[:, None]


def test_keys_are_drawn_as_often_as_the_softmax_says():
    torch.manual_seed(0)
    scores, mask = many()
    weights = HardSelect()(scores, mask).weights
    expected = SCORES.masked_fill(~MASK, -torch.inf).softmax(-1)
    # Three standard deviations of a share among 20 thousand draws are 0.011.
    torch.testing.assert_close(weights.mean(1), expected, atol=0.011, rtol=0)
    assert set(weights.unique().tolist()) == {0.0, 1.0}


def test_log_prob_and_entropy_are_those_of_torchs_categorical():
    torch.manual_seed(0)
    scores, mask = many(13)
    selected = HardSelect()(scores, mask)
    categorical = torch.distributions.Categorical(
        logits=scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    )
    chosen = selected.weights.argmax(-1)
    torch.testing.assert_close(selected.log_prob, categorical.log_prob(chosen))
    torch.testing.assert_close(selected.entropy, categorical.entropy())


def test_in_evaluation_the_likeliest_key_is_taken():
    scores, mask = many(2)
    selected = HardSelect().eval()(scores, mask)
    assert selected.weights.argmax(-1).tolist() == [[2, 2], [0, 0]]


def test_the_weights_carry_no_gradient_but_the_log_probability_does():
    scores = SCORES[:, None].clone().requires_grad_()
    selected = HardSelect()(scores, MASK[:, None])
    assert not selected.weights.requires_grad
    selected.log_prob.sum().backward()
    # The gradient of log p(chosen) is one-hot minus p.
    p = SCORES.masked_fill(~MASK, -torch.inf).softmax(-1)[:, None]
    torch.testing.assert_close(scores.grad, selected.weights - p)


def test_where_nothing_may_be_chosen_nothing_is_and_it_is_certain():
    mask = torch.zeros(2, 1, 3, dtype=torch.bool)
    selected = HardSelect()(SCORES[:, None], mask)
    assert (selected.weights == 0).all()
    assert (selected.log_prob == 0).all() and (selected.entropy == 0).all()
