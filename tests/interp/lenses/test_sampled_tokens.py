"""Tokens that stand for the whole vocabulary: judged by the sums they should reproduce."""

import pytest
import torch

from saccade.interp.lenses.held_out import sample_tokens

VOCAB, DRAWS = 307, 1009


@pytest.fixture(scope="module")
def likely():
    logits = 2 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    return logits.softmax(-1)


@pytest.fixture(scope="module")
def proposal():
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    return logits.softmax(-1)


def weighted_sums(summed, likely, proposal, *, n_tokens):
    generator = torch.Generator().manual_seed(3)
    sums = []
    for _ in range(DRAWS):
        tokens = sample_tokens(likely, proposal, n_tokens=n_tokens, generator=generator)
        sums.append((tokens.log_weight.double().exp() * summed[tokens.ids].double()).sum())
    return torch.stack(sums)


@pytest.mark.parametrize("n_tokens", [5, 41])
def test_the_weighted_sum_has_the_whole_sum_as_its_mean(likely, proposal, n_tokens):
    summed = torch.randn(VOCAB, generator=torch.Generator().manual_seed(4))
    found = weighted_sums(summed, likely, proposal, n_tokens=n_tokens)
    error = found.std() / DRAWS**0.5
    assert found.std() > 0
    assert abs(found.mean() - summed.double().sum()) < 4 * error


def test_a_sum_of_what_is_proposed_is_the_same_in_every_draw(likely, proposal):
    """Drawn in proportion to itself, each draw of g weighs the same: no variance is left."""
    found = weighted_sums(proposal, likely, proposal, n_tokens=41)
    torch.testing.assert_close(found, torch.ones_like(found), atol=1e-5, rtol=0)


def test_a_token_that_the_proposal_leaves_out_is_still_counted():
    likely = torch.tensor([0.9, 0.05, 0.03, 0.02])
    proposal = torch.tensor([0.5, 0.0, 0.0, 0.0])  # nothing is left for the tokens to be drawn
    found = weighted_sums(torch.ones(4), likely, proposal, n_tokens=3)
    assert abs(found.mean() - 4) < 4 * found.std() / DRAWS**0.5 + 1e-6


@pytest.mark.parametrize("n_tokens", [VOCAB, VOCAB + 2])
def test_all_tokens_are_taken_once_when_there_is_room(likely, proposal, n_tokens):
    generator = torch.Generator().manual_seed(0)
    tokens = sample_tokens(likely, proposal, n_tokens=n_tokens, generator=generator)
    assert tokens.ids.tolist() == list(range(VOCAB))
    assert (tokens.log_weight == 0).all()


def test_three_quarters_are_the_likeliest_and_are_never_drawn_again(likely, proposal):
    tokens = sample_tokens(
        likely, proposal, n_tokens=41, generator=torch.Generator().manual_seed(0)
    )
    certain, drawn = tokens.ids[:30].tolist(), tokens.ids[30:].tolist()
    assert certain == sorted(range(VOCAB), key=lambda token: -float(likely[token]))[:30]
    assert (tokens.log_weight[:30] == 0).all()
    assert len(drawn) == 11 and not set(certain) & set(drawn)


def test_the_same_seed_draws_the_same_tokens(likely, proposal):
    one, other, third = (
        sample_tokens(likely, proposal, n_tokens=41, generator=torch.Generator().manual_seed(seed))
        for seed in (7, 7, 8)
    )
    assert torch.equal(one.ids, other.ids) and torch.equal(one.log_weight, other.log_weight)
    assert not torch.equal(one.ids, third.ids)
