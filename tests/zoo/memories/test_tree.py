"""A tree is joined, searched and rewritten as a list of numbers would be."""

import itertools

import pytest
import torch

from saccade.zoo.memories.tree import (
    find_leaf,
    grow,
    leaf_weights,
    n_leaves,
    pad_leaves,
    rewrite,
    take,
)

BATCH, LEAVES, WIDTH = 3, 8, 5


@pytest.fixture
def leaves():
    return torch.randn(BATCH, LEAVES, WIDTH, generator=torch.Generator().manual_seed(0))


def joined(left, right):
    """Not the same with its sides changed."""
    return torch.tanh(left + 2 * right)


def odds(nodes):
    return nodes.sum(-1)


def test_every_node_is_joined_of_its_children(leaves):
    tree = grow(leaves, joined)
    assert tree.height == 3 and [level.shape[1] for level in tree.levels] == [8, 4, 2, 1]
    for below, above in itertools.pairwise(tree.levels):
        for node in range(above.shape[1]):
            expected = joined(below[:, 2 * node], below[:, 2 * node + 1])
            torch.testing.assert_close(above[:, node], expected)


def test_the_weight_of_a_leaf_is_the_product_of_the_turns_that_lead_to_it(leaves):
    tree = grow(leaves, joined)
    weights = leaf_weights(tree, odds)
    for row in range(BATCH):
        for leaf in range(LEAVES):
            expected = 1.0
            for height in range(1, tree.height + 1):
                node = tree.levels[height][row, leaf >> height]
                right = torch.sigmoid(node.sum()).item()
                is_right = leaf >> (height - 1) & 1
                expected *= right if is_right else 1 - right
            assert weights[row, leaf].item() == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(weights.sum(1), torch.ones(BATCH))


def test_the_hard_walk_takes_the_likelier_turn_and_asks_one_node_a_level(leaves):
    tree, asked = grow(leaves, joined), []

    def turn(nodes):
        asked.append(nodes.shape[1])
        return odds(nodes)

    found = find_leaf(tree, turn)
    assert asked == [1] * tree.height
    sharp = leaf_weights(tree, lambda nodes: 1000 * odds(nodes))
    assert torch.equal(found, sharp.argmax(1))


def test_rewriting_a_leaf_gives_the_tree_that_would_have_grown_with_it(leaves):
    at = torch.tensor([0, 5, 7])
    cell = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    changed = leaves.clone()
    changed[torch.arange(BATCH), at] = cell
    before = grow(leaves, joined)
    after = rewrite(before, at, cell, join=joined)
    for level, expected in zip(after.levels, grow(changed, joined).levels, strict=True):
        torch.testing.assert_close(level, expected)
    torch.testing.assert_close(take(after.leaves, at), cell)
    assert torch.equal(before.leaves, leaves)


def test_a_tree_of_one_leaf_has_no_turns():
    tree = grow(torch.zeros(BATCH, 1, WIDTH), joined)
    assert tree.height == 0 and (leaf_weights(tree, odds) == 1).all()
    assert (find_leaf(tree, odds) == 0).all()


@pytest.mark.parametrize(("n", "room"), [(1, 1), (3, 4), (4, 4), (9, 16)])
def test_cells_are_filled_up_to_a_power_of_two(n, room):
    padded = pad_leaves(torch.ones(BATCH, n, WIDTH))
    assert padded.shape[1] == n_leaves(n) == room
    assert (padded[:, :n] == 1).all() and (padded[:, n:] == 0).all()
