"""The attention GRU: its loop and its gradient by hand against autograd, and what weights do."""

import pytest
import torch

from saccade.zoo.cells.gru import AttentionGru

BATCH, FACTS, D_INPUT, D = 3, 5, 7, 11


@pytest.fixture
def cell():
    torch.manual_seed(0)
    return AttentionGru(d_input=D_INPUT, d_hidden=D).double()


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(1)
    facts = torch.randn(BATCH, FACTS, D_INPUT, generator=generator, dtype=torch.double)
    weights = torch.rand(BATCH, FACTS, generator=generator, dtype=torch.double)
    return facts.requires_grad_(), weights.requires_grad_()


def by_loop(cell, facts, weights):
    hidden = torch.zeros(BATCH, D, dtype=torch.double)
    for fact, weight in zip(facts.unbind(1), weights.unbind(1), strict=True):
        reset, offered = cell.of_input(fact).chunk(2, 1)
        own_reset, own = cell.of_state(hidden).chunk(2, 1)
        candidate = torch.tanh(offered + torch.sigmoid(reset + own_reset) * own)
        hidden = weight[:, None] * candidate + (1 - weight[:, None]) * hidden
    return hidden


def test_it_is_the_papers_loop_and_has_its_gradient(cell, given):
    outward = torch.randn(BATCH, D, dtype=torch.double)
    leaves = [*given, *cell.parameters()]
    facts, weights = given
    ours = cell(cell.project(facts), weights)
    theirs = by_loop(cell, facts, weights)
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(
        torch.autograd.grad(ours, leaves, outward),
        torch.autograd.grad(theirs, leaves, outward),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_its_gradient_passes_torchs_own_check(cell, given):
    facts, weights = given
    assert torch.autograd.gradcheck(lambda f, w: cell(cell.project(f), w), (facts, weights))


def test_a_fact_of_weight_zero_is_not_there(cell, given):
    facts, weights = (each.detach().clone() for each in given)
    weights[:, 2] = 0
    left = [0, 1, 3, 4]
    torch.testing.assert_close(
        cell(cell.project(facts), weights), cell(cell.project(facts[:, left]), weights[:, left])
    )


def test_a_fact_of_weight_one_alone_makes_the_state(cell, given):
    facts, weights = (each.detach().clone() for each in given)
    weights.zero_()
    weights[:, 3] = 1
    alone = cell(cell.project(facts[:, 3:4]), torch.ones(BATCH, 1, dtype=torch.double))
    torch.testing.assert_close(cell(cell.project(facts), weights), alone)


def test_the_order_of_facts_matters(cell, given):
    facts, weights = (each.detach() for each in given)
    turned = cell(cell.project(facts.flip(1)), weights.flip(1))
    assert not torch.allclose(cell(cell.project(facts), weights), turned, atol=1e-3)
