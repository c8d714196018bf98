"""Hierarchical attentive memory: soft and hard search are what they say, and meet."""

import pytest
import torch

from saccade.zoo.models.hierarchical_attentive_memory import HierarchicalAttentiveMemory

BATCH, ITEMS, D_ITEM, D_OUTPUT, NODE, HIDDEN = 2, 5, 3, 7, 11, 13


@pytest.fixture
def model():
    torch.manual_seed(0)
    memory = HierarchicalAttentiveMemory(
        d_item=D_ITEM, d_output=D_OUTPUT, d_node=NODE, d_hidden=HIDDEN
    )
    torch.nn.init.normal_(memory.joined.weight)
    torch.nn.init.normal_(memory.joined.bias)
    return memory


@pytest.fixture
def items():
    return torch.randn(BATCH, ITEMS, D_ITEM, generator=torch.Generator().manual_seed(0))


def joined(model, left, right):
    node = (left + right) / 2 + model.join(torch.cat([left, right]))
    node = (node - node.mean()) / (node.var(correction=0) + model.joined.eps).sqrt()
    return node * model.joined.weight + model.joined.bias


def rewritten(model, leaf, h):
    both = torch.cat([leaf, h])
    share = model.is_written(both).sigmoid()
    return share * model.written(both) + (1 - share) * leaf


@torch.no_grad()
def by_loops(model, sequence, *, is_hard):
    """One sequence: a tree as a dict from (height, place) to a node, rebuilt at every step."""
    room = 8
    padded = torch.cat([sequence, torch.zeros(room - len(sequence), D_ITEM)])
    leaves = [model.embed(item) for item in padded]
    h, c = torch.zeros(1, 1, HIDDEN), torch.zeros(1, 1, HIDDEN)
    said, looks = [], []
    for _ in sequence:
        nodes = {(0, place): leaf for place, leaf in enumerate(leaves)}
        for height in range(1, 4):
            for place in range(room >> height):
                below = [nodes[height - 1, 2 * place + side] for side in (0, 1)]
                nodes[height, place] = joined(model, *below)
        weights = {(3, 0): 1.0}
        for height in range(3, 0, -1):
            for place in range(room >> height):
                odds = model.search(torch.cat([nodes[height, place], h[0, 0]]))
                right = float(odds > 0) if is_hard else odds.sigmoid().item()
                here = weights[height, place]
                weights[height - 1, 2 * place] = here * (1 - right)
                weights[height - 1, 2 * place + 1] = here * right
        look = torch.tensor([weights[0, place] for place in range(room)])
        cell = sum(weight * leaf for weight, leaf in zip(look, leaves, strict=True))
        output, (h, c) = model.controller.kernel(cell[None, None], (h, c))
        leaves = [
            weight * rewritten(model, leaf, h[0, 0]) + (1 - weight) * leaf
            for weight, leaf in zip(look, leaves, strict=True)
        ]
        said.append(model.output(output[0, 0]))
        looks.append(look)
    return torch.stack(said), torch.stack(looks)


@pytest.mark.parametrize("is_hard", [False, True])
def test_a_batch_agrees_with_loops_over_nodes(model, items, is_hard):
    searched = model.run(items, is_hard=is_hard)
    for row, sequence in enumerate(items):
        said, looks = by_loops(model, sequence, is_hard=is_hard)
        torch.testing.assert_close(searched.weights[row], looks, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(searched.logits[row], said, atol=1e-5, rtol=1e-4)


def test_soft_and_hard_search_meet_where_turns_are_certain(model, items):
    model.search[2].weight.data.mul_(1e5)
    model.search[2].bias.data.mul_(1e5)
    soft, hard = (model.run(items, is_hard=is_hard) for is_hard in (False, True))
    torch.testing.assert_close(soft.logits, hard.logits, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(soft.weights, hard.weights, atol=1e-4, rtol=1e-3)


def test_training_is_soft_and_what_is_trained_is_used_hard(model, items):
    assert torch.equal(model.train()(items), model.run(items, is_hard=False).logits)
    assert torch.equal(model.eval()(items), model.run(items, is_hard=True).logits)


def test_every_part_learns_by_soft_search(model, items):
    model.train()(items).square().mean().backward()
    idle = [
        name
        for name, weight in model.named_parameters()
        if weight.requires_grad and (weight.grad is None or not weight.grad.any())
    ]
    assert not idle


def test_there_may_be_more_or_fewer_outputs_than_items(model, items):
    few, many = (model.run(items, n_steps=n, is_hard=True) for n in (2, ITEMS + 3))
    assert many.logits.shape == (BATCH, ITEMS + 3, D_OUTPUT)
    for run in (few, model.run(items, is_hard=True)):  # as far as it goes, the same search
        n_steps = run.logits.shape[1]
        torch.testing.assert_close(run.logits, many.logits[:, :n_steps])
        torch.testing.assert_close(run.weights, many.weights[:, :n_steps])
    assert few.logits.shape[1] == 2
