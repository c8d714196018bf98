"""A memory that is a binary tree: search takes as many steps as the tree has levels.

Andrychowicz and Kurach, 2016 (https://arxiv.org/abs/1602.03218), section 3. Leaves are the memory's
cells; an inner node is computed from its two children by a learnt function, ``join``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

Join = Callable[
    [Float[Tensor, "batch node d_node"], Float[Tensor, "batch node d_node"]],
    Float[Tensor, "batch node d_node"],
]
"""``join(left, right)`` of any number of pairs at once."""
Turn = Callable[[Float[Tensor, "batch node d_node"]], Float[Tensor, "batch node"]]
"""The log-odds of turning right at each of these nodes."""


class Tree(NamedTuple):
    """All nodes, level by level: the leaves first, the root last."""

    levels: tuple[Float[Tensor, "batch node d_node"], ...]

    @property
    def leaves(self) -> Float[Tensor, "batch leaf d_node"]:
        """The memory's cells."""
        return self.levels[0]

    @property
    def height(self) -> int:
        """Number of steps from the root to a leaf."""
        return len(self.levels) - 1


def n_leaves(n: int) -> int:
    """The smallest power of two that is at least ``n``.

    >>> [n_leaves(n) for n in (1, 2, 5, 8)]
    [1, 2, 8, 8]
    """
    return 1 << (n - 1).bit_length()


def grow(leaves: Float[Tensor, "batch leaf d_node"], join: Join) -> Tree:
    """Join neighbours level by level, up to the root.

    >>> tree = grow(torch.tensor([[[3.0], [1.0], [2.0], [5.0]]]), torch.minimum)
    >>> [level.flatten().tolist() for level in tree.levels]
    [[3.0, 1.0, 2.0, 5.0], [1.0, 2.0], [1.0]]
    """
    count = leaves.shape[1]
    assert count == n_leaves(count), f"{count} leaves make no full tree"
    levels = [leaves]
    while levels[-1].shape[1] > 1:
        left, right = levels[-1].unflatten(1, (-1, 2)).unbind(2)
        levels.append(join(left, right))
    return Tree(tuple(levels))


def leaf_weights(tree: Tree, turn: Turn) -> Float[Tensor, "batch leaf"]:
    """The probability of reaching each leaf: the product of the turns on its path.

    The paper's appendix A, "using soft attention". It evaluates every node, so it costs as much as
    plain attention, but has an exact gradient.

    >>> tree = grow(torch.zeros(1, 4, 1), torch.minimum)
    >>> leaf_weights(tree, lambda nodes: nodes[..., 0])
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    weights = tree.leaves.new_ones(len(tree.leaves), 1)
    if tree.height == 0:
        return weights
    inner = tree.levels[1:]
    odds = turn(torch.cat(inner, dim=1)).split([level.shape[1] for level in inner], dim=1)
    for log_odds in reversed(odds):
        right = log_odds.sigmoid()
        weights = (weights[:, :, None] * torch.stack([1 - right, right], dim=2)).flatten(1)
    return weights


def find_leaf(tree: Tree, turn: Turn) -> Int[Tensor, " batch"]:
    """The leaf on the path of the most likely turns: evaluates one node per level.

    >>> tree = grow(torch.tensor([[[3.0], [1.0], [2.0], [5.0]]]), torch.minimum)
    >>> find_leaf(tree, lambda nodes: 4 - nodes[..., 0])  # at 1 and above, right; never left
    tensor([3])
    """
    at = torch.zeros(len(tree.leaves), dtype=torch.long, device=tree.leaves.device)
    for level in reversed(tree.levels[1:]):
        is_right = turn(take(level, at)[:, None])[:, 0] > 0
        at = 2 * at + is_right
    return at


def rewrite(
    tree: Tree, at: Int[Tensor, " batch"], cell: Float[Tensor, "batch d_node"], *, join: Join
) -> Tree:
    """Write a new value to one leaf of each tree, and join again along its path to the root."""
    levels = []
    for old in tree.levels:
        index = at[:, None, None].expand(-1, 1, old.shape[2])
        levels.append(old.scatter(1, index, cell[:, None]))
        if len(levels) <= tree.height:
            left = at - at % 2
            pair = (take(levels[-1], left)[:, None], take(levels[-1], left + 1)[:, None])
            cell, at = join(*pair)[:, 0], at // 2
    return Tree(tuple(levels))


def take(
    level: Float[Tensor, "batch node d_node"], at: Int[Tensor, " batch"]
) -> Float[Tensor, "batch d_node"]:
    """One node of each tree."""
    return level[torch.arange(len(level), device=level.device), at]


def pad_leaves(cells: Float[Tensor, "batch cell d"]) -> Float[Tensor, "batch leaf d"]:
    """The cells padded with zeros to a power of two."""
    count = cells.shape[1]
    return functional.pad(cells, (0, 0, 0, n_leaves(count) - count))
