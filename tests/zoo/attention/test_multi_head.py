"""Multi-head attention against torch's own module and loops, and its two paths compared."""

import math

import pytest
import torch
from torch import nn

from saccade.errors import UsageError
from saccade.zoo.attention.masks import causal_mask, padding_mask
from saccade.zoo.attention.multi_head import MultiHeadAttention

D, HEADS = 33, 3


@pytest.fixture
def attention():
    torch.manual_seed(0)
    module = MultiHeadAttention(D, HEADS).eval()
    nn.init.normal_(module.in_proj_bias)
    nn.init.normal_(module.out_proj.bias)
    return module


@pytest.fixture
def query():
    return torch.randn(2, 5, D, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def memory():
    return torch.randn(2, 7, D, generator=torch.Generator().manual_seed(2))


def masks():
    torch.manual_seed(3)
    dead_row = torch.rand(2, 5, 7) < 0.5
    dead_row[1, 3] = False
    return {
        "none": None,
        "padding": padding_mask(torch.tensor([7, 4]), 7)[:, None],
        "one for all": torch.rand(1, 5, 7) < 0.7,
        "a row of nothing": dead_row,
        "a sentence of nothing": padding_mask(torch.tensor([7, 0]), 7)[:, None],
    }


def test_it_is_torchs_module_with_the_mask_turned_round(attention, query, memory):
    theirs = nn.MultiheadAttention(D, HEADS, batch_first=True).eval()
    theirs.load_state_dict(attention.state_dict())
    lengths = torch.tensor([7, 4])
    context, weights = theirs(
        query,
        memory,
        memory,
        key_padding_mask=~padding_mask(lengths, 7),
        average_attn_weights=False,
    )
    ours = attention(query, memory, mask=padding_mask(lengths, 7)[:, None], need_weights=True)
    torch.testing.assert_close(ours.context, context)
    torch.testing.assert_close(ours.weights, weights)


def test_it_starts_as_torchs_module_does():
    torch.manual_seed(4)
    theirs = nn.MultiheadAttention(D, HEADS)
    ours = MultiHeadAttention(D, HEADS)
    for name, parameter in theirs.named_parameters():
        mine = ours.get_parameter(name)
        assert mine.shape == parameter.shape
        torch.testing.assert_close(mine.std(), parameter.std(), atol=0.01, rtol=0)


@torch.no_grad()
def test_one_head_and_query_by_loops(attention, query, memory):
    mask = masks()["one for all"]
    found = attention(query, memory, mask=mask, need_weights=True)
    w_q, w_k, w_v = attention.in_proj_weight.chunk(3)
    b_q, b_k, b_v = attention.in_proj_bias.chunk(3)
    row, position, size = 1, 3, D // HEADS
    heads = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        q = (w_q @ query[row, position] + b_q)[part]
        scores = [q @ (w_k @ k + b_k)[part] / math.sqrt(size) for k in memory[row]]
        exps = [s.exp() if mask[0, position, j] else 0.0 for j, s in enumerate(scores)]
        weights = [e / sum(exps) for e in exps]
        torch.testing.assert_close(found.weights[row, head, position], torch.tensor(weights))
        values = [(w_v @ v + b_v)[part] for v in memory[row]]
        heads.append(sum(w * v for w, v in zip(weights, values, strict=True)))
    expected = attention.out_proj(torch.cat(heads))
    torch.testing.assert_close(found.context[row, position], expected)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", masks())
def test_the_fused_and_the_explicit_path_agree(attention, query, memory, kind, is_causal):
    mask = masks()[kind]
    results = []
    for need_weights in (False, True):
        query.grad = None
        query.requires_grad_()
        context, weights = attention(
            query, memory, mask=mask, is_causal=is_causal, need_weights=need_weights
        )
        context.square().mean().backward()
        results.append((context, query.grad))
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-6)
    assert weights.shape == (2, HEADS, 5, 7)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", ["a row of nothing", "a sentence of nothing"])
def test_a_query_that_may_attend_to_nothing_reads_zeros(
    attention, query, memory, kind, need_weights
):
    mask = masks()[kind]
    query, memory = query.requires_grad_(), memory.requires_grad_()
    context, weights = attention(query, memory, mask=mask, need_weights=need_weights)
    dead = ~mask.any(-1).expand(2, 5)
    assert (context[dead] == 0).all() and context[~dead].abs().min() > 0
    context.sum().backward()
    assert query.grad.isfinite().all() and memory.grad.isfinite().all()
    assert (query.grad[dead] == 0).all()
    if need_weights:
        assert (weights.transpose(1, 2)[dead] == 0).all()


@pytest.mark.parametrize("need_weights", [False, True])
def test_causal_is_the_causal_mask(attention, query, need_weights):
    flagged = attention(query, query, is_causal=True, need_weights=need_weights)
    masked = attention(query, query, mask=causal_mask(5)[None], need_weights=need_weights)
    torch.testing.assert_close(flagged.context, masked.context)


@pytest.mark.parametrize("need_weights", [False, True])
def test_the_future_changes_nothing_under_a_causal_mask(attention, query, need_weights):
    changed = query.clone()
    changed[:, 3:] = 9.0
    before, after = (
        attention(x, x, is_causal=True, need_weights=need_weights).context for x in (query, changed)
    )
    torch.testing.assert_close(before[:, :3], after[:, :3])


def test_causal_and_padding_hold_together(attention, query):
    mask = padding_mask(torch.tensor([5, 2]), 5)[:, None]
    weights = attention(query, query, mask=mask, is_causal=True, need_weights=True).weights
    allowed = mask & causal_mask(5)
    assert (weights[~allowed[:, None].expand_as(weights)] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 5))


@pytest.mark.parametrize("need_weights", [False, True])
def test_step_by_step_with_kept_keys_is_the_whole_at_once(attention, query, need_weights):
    whole = attention(query, query, is_causal=True).context
    kept = attention.project(query[:, :1])
    steps = [attention(query[:, :1], kept, is_causal=True, need_weights=need_weights).context]
    for position in range(1, 5):
        newest = query[:, position : position + 1]
        kept = kept.append(attention.project(newest))
        steps.append(attention(newest, kept, is_causal=True, need_weights=need_weights).context)
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_the_last_query_stands_at_the_last_key(attention, query):
    whole = attention(query, query, is_causal=True).context
    last_two = attention(query[:, 3:], attention.project(query), is_causal=True).context
    torch.testing.assert_close(last_two, whole[:, 3:])


def test_projecting_first_changes_nothing(attention, query, memory):
    mask = masks()["padding"]
    direct = attention(query, memory, mask=mask).context
    torch.testing.assert_close(
        attention(query, attention.project(memory), mask=mask).context, direct
    )


def test_the_same_tensor_is_asked_as_a_copy_of_it_would_be(attention, query):
    torch.testing.assert_close(
        attention(query, query).context, attention(query, query.clone()).context
    )


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_acts_in_training_alone(query, need_weights):
    torch.manual_seed(5)
    attention = MultiHeadAttention(D, HEADS, dropout=0.5)
    first, second = (attention(query, query, need_weights=need_weights) for _ in range(2))
    assert not torch.equal(first.context, second.context)
    if need_weights:  # these are told before dropout
        assert torch.equal(first.weights, second.weights)
    attention.eval()
    first, second = (attention(query, query, need_weights=need_weights) for _ in range(2))
    assert torch.equal(first.context, second.context)


def test_heads_must_share_the_model_evenly():
    with pytest.raises(UsageError, match="multiple of n_heads, got 10 and 3") as raised:
        MultiHeadAttention(10, 3)
    assert "d_model=12" in raised.value.hint


def test_causal_queries_cannot_outnumber_the_keys(attention, query, memory):
    with pytest.raises(AssertionError, match="7 queries cannot all stand at one of 5 keys"):
        attention(memory, query, is_causal=True)


# With as many keys as features of the model (33) or as many queries as features of a head (11), a
# mistaken axis would pass for as many queries as keys.
@pytest.mark.parametrize(("n_queries", "n_keys"), [(7, 7), (5, 7), (5, D), (D // HEADS, 17)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("is_padded", [False, True])
def test_the_quick_path_reads_what_torchs_module_reads_for_any_sizes(
    attention, n_queries, n_keys, is_causal, is_padded
):
    theirs = nn.MultiheadAttention(D, HEADS, batch_first=True).eval()
    theirs.load_state_dict(attention.state_dict())
    chance = torch.Generator().manual_seed(6)
    query = torch.randn(2, n_queries, D, generator=chance)
    memory = torch.randn(2, n_keys, D, generator=chance)
    padding = padding_mask(torch.tensor([n_keys, n_keys - 1]), n_keys)
    causal = causal_mask(n_keys)[-n_queries:]
    expected, _ = theirs(
        query,
        memory,
        memory,
        key_padding_mask=~padding if is_padded else None,
        attn_mask=~causal if is_causal else None,
    )
    mask = padding[:, None] if is_padded else None
    found = attention(query, memory, mask=mask, is_causal=is_causal)
    torch.testing.assert_close(found.context, expected)
