"""A GRU is attention over its own past, and self-attention is what is left when it is freed."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.attention.multi_head import MultiHeadAttention
from saccade.zoo.cells.attention_over_past import FreedAttention, attention_over_past
from saccade.zoo.cells.gru import GruCell

BATCH, STEPS, D_INPUT, D_HIDDEN = 3, 7, 5, 22


@pytest.fixture
def cell():
    cell = GruCell(D_INPUT, D_HIDDEN)
    for parameter in cell.parameters():
        parameter.data.normal_(std=0.7)
    return cell


def test_the_weights_from_the_gates_give_the_grus_states_back(cell, inputs):
    first = torch.randn(BATCH, D_HIDDEN)
    for state in (None, first):
        past = attention_over_past(cell, inputs, state)
        torch.testing.assert_close(past.read(), cell.unroll(inputs, state).outputs)


def test_weights_are_positive_sum_to_one_and_never_look_ahead(cell, inputs):
    weights = attention_over_past(cell, inputs).weights
    assert weights.shape == (BATCH, STEPS, STEPS + 1, D_HIDDEN)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(2), torch.ones(BATCH, STEPS, D_HIDDEN))
    for t in range(STEPS):
        assert (weights[:, t, t + 2 :] == 0).all()


def test_a_weight_is_the_product_of_gates_that_the_formula_says(cell, inputs):
    past = attention_over_past(cell, inputs)
    outputs = cell.unroll(inputs).outputs
    u = []
    for t in range(STEPS):
        before = outputs[:, t - 1] if t else torch.zeros(BATCH, D_HIDDEN)
        u.append(cell.gates(cell.project(inputs[:, t]), before).update)
    for t, i in [(0, 0), (4, 4), (4, 1), (6, 0)]:
        expected = 1 - u[i]
        for j in range(i + 1, t + 1):
            expected = expected * u[j]
        torch.testing.assert_close(past.weights[:, t, i + 1], expected)


def test_a_shut_gate_forgets_all_and_gives_no_nan(cell, inputs):
    cell.kernel.bias_ih_l0.data[D_HIDDEN : 2 * D_HIDDEN] = -1e4  # u = 0 exactly
    weights = attention_over_past(cell, inputs).weights
    assert torch.equal(weights[:, :, 1:].sum((2, 3)), torch.full((BATCH, STEPS), 1.0 * D_HIDDEN))
    assert (weights.diagonal(1, 1, 2) == 1).all()


@pytest.mark.parametrize("freed", ["weights", "values", "keys", "heads"])
def test_freed_weights_sum_to_one_and_never_look_ahead(freed, inputs):
    model = FreedAttention(D_INPUT, D_HIDDEN, freed=freed, n_heads=2 if freed == "heads" else 1)
    found = model(inputs)
    torch.testing.assert_close(found.weights.sum(3), torch.ones_like(found.weights[..., 0]))
    assert (found.weights.triu(1) == 0).all()
    changed = inputs.clone()
    changed[:, 4:] = 9.0
    torch.testing.assert_close(model(changed).outputs[:, :4], found.outputs[:, :4])


def test_freed_values_read_by_loops_are_what_the_formula_says(inputs):
    model = FreedAttention(D_INPUT, D_HIDDEN, freed="values")
    f = torch.tanh(model.candidate_proj(inputs))
    q = model.query_proj(inputs)
    found = model(inputs).outputs
    for row in range(BATCH):
        for t in range(STEPS):
            scores = torch.stack([f[row, i] @ q[row, t] for i in range(t + 1)]) / D_HIDDEN**0.5
            expected = scores.softmax(0) @ f[row, : t + 1]
            torch.testing.assert_close(found[row, t], expected)


def test_without_a_way_from_the_state_the_first_step_is_the_second(inputs):
    first = FreedAttention(D_INPUT, D_HIDDEN, freed="weights")
    second = FreedAttention(D_INPUT, D_HIDDEN, freed="values")
    second.load_state_dict(first.state_dict(), strict=False)
    first.state_proj.weight.data.zero_()
    torch.testing.assert_close(first(inputs).outputs, second(inputs).outputs)


def test_without_projections_the_third_step_is_the_second(inputs):
    second = FreedAttention(D_INPUT, D_HIDDEN, freed="values")
    third = FreedAttention(D_INPUT, D_HIDDEN, freed="keys")
    third.load_state_dict(second.state_dict(), strict=False)
    for layer in (third.key_proj, third.value_proj):
        torch.nn.init.eye_(layer.weight)
    torch.testing.assert_close(third(inputs).outputs, second(inputs).outputs)


def test_the_last_step_reads_as_torchs_causal_attention_does(inputs):
    model = FreedAttention(D_INPUT, D_HIDDEN, freed="heads", n_heads=2)
    f = torch.tanh(model.candidate_proj(inputs))
    q, k, v = (
        x.unflatten(2, (2, 11)).transpose(1, 2)
        for x in (model.query_proj(inputs), model.key_proj(f), model.value_proj(f))
    )
    read = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(model(inputs).outputs, read.transpose(1, 2).flatten(2))
    assert MultiHeadAttention.__doc__  # the same thing as a part of larger systems


def test_heads_belong_to_the_last_step_and_divide_the_size():
    with pytest.raises(UsageError, match="got 2 with freed='keys'"):
        FreedAttention(2, 4, freed="keys", n_heads=2)
    with pytest.raises(UsageError, match="3 heads do not divide d_hidden 4"):
        FreedAttention(2, 4, n_heads=3)
