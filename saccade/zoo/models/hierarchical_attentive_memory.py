"""Hierarchical attentive memory: an LSTM that searches a binary tree of memory cells."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.memories.tree import (
    Tree,
    Turn,
    find_leaf,
    grow,
    leaf_weights,
    pad_leaves,
    rewrite,
    take,
)


class Searched(NamedTuple):
    """Outputs of each step, and the weights of the cells."""

    logits: Float[Tensor, "batch step d_output"]
    weights: Float[Tensor, "batch step leaf"]


class HierarchicalAttentiveMemory(nn.Module):
    """HAM: for each output one leaf of the memory is found, read and written.

    Andrychowicz and Kurach, 2016 (https://arxiv.org/abs/1602.03218), section 3, with its names::

        leaf_i = EMBED(x_i);  node = JOIN(left, right)                   before the first step
        a: from the root, right with probability SEARCH(node, h)         attention
        h = LSTM(leaf_a);  y = W h                                       output
        leaf_a <- WRITE(leaf_a, h), and JOIN again on the way to the root
        WRITE(l, h) = T(l, h) H(l, h) + (1 - T(l, h)) l

    ``run(..., is_hard=True)`` is that, with the more likely turn at each node: the cost of a step
    is logarithmic in the number of cells. Where we differ: it is trained by the soft form of the
    paper's appendix A, in which a step reads the mean over all leaves, weighted by the probability
    of reaching them, and writes each with the same weight; its gradient is exact, where the sampled
    form needs REINFORCE. The two forms agree where every turn is certain. EMBED, JOIN, SEARCH, H
    and T have one hidden layer each; JOIN adds its output to the mean of the two, so that a leaf's
    content reaches the root even before training. The outputs of EMBED, JOIN and H are normalised:
    gradients through many writes and levels stay small, which allows a higher learning rate.

    Args:
        d_item: Size of a cell's input.
        d_node: Size of a node's vector.

    >>> memory = HierarchicalAttentiveMemory(d_item=3, d_output=2, d_node=5, d_hidden=7)
    >>> memory(torch.zeros(2, 6, 3)).shape
    torch.Size([2, 6, 2])
    """

    def __init__(self, *, d_item: int, d_output: int, d_node: int = 32, d_hidden: int = 32) -> None:
        super().__init__()
        self.controller = LstmCell(d_node, d_hidden)
        self.embed = nn.Sequential(_layers(d_item, d_node, d_node), nn.LayerNorm(d_node))
        self.join = _layers(2 * d_node, 2 * d_node, d_node)
        self.joined = nn.LayerNorm(d_node)
        self.search = _layers(d_node + d_hidden, d_node, 1)
        self.written = nn.Sequential(
            _layers(d_node + d_hidden, d_node, d_node), nn.LayerNorm(d_node)
        )
        self.is_written = _layers(d_node + d_hidden, d_node, 1)
        self.output = nn.Linear(d_hidden, d_output)

    def forward(
        self, items: Float[Tensor, "batch item d_item"]
    ) -> Float[Tensor, "batch item d_output"]:
        """As many outputs as items, by soft search in training and by hard search in evaluation."""
        return self.run(items, is_hard=not self.training).logits

    def run(
        self,
        items: Float[Tensor, "batch item d_item"],
        *,
        n_steps: int | None = None,
        is_hard: bool,
    ) -> Searched:
        """Search, read, output and write, ``n_steps`` times.

        Args:
            n_steps: Default: the number of items.
        """
        step = self._hard_step if is_hard else self._soft_step
        tree = grow(self.embed(pad_leaves(items)), self._join)
        state = self.controller.start(len(items))
        hidden, said, looks = state.hidden, [], []
        for _ in range(items.shape[1] if n_steps is None else n_steps):
            weights, cell, place = step(tree, hidden)
            hidden, state = self.controller.step(cell, state)
            tree = self._write(tree, place, hidden)
            said.append(hidden)
            looks.append(weights)
        return Searched(self.output(torch.stack(said, dim=1)), torch.stack(looks, dim=1))

    def _soft_step(self, tree: Tree, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all leaves, their mean, and again the weights."""
        weights = leaf_weights(tree, self._turn(hidden))
        return weights, (weights[:, None] @ tree.leaves)[:, 0], weights

    def _hard_step(self, tree: Tree, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One leaf: its weight of 1, its content, and its index."""
        at = find_leaf(tree, self._turn(hidden))
        weights = functional.one_hot(at, tree.leaves.shape[1]).to(hidden)
        return weights, take(tree.leaves, at), at

    def _write(self, tree: Tree, place: Tensor, hidden: Tensor) -> Tree:
        if place.dim() == 1:  # one leaf of each tree
            cell = self._rewritten(take(tree.leaves, place)[:, None], hidden)[:, 0]
            return rewrite(tree, place, cell, join=self._join)
        new = self._rewritten(tree.leaves, hidden)
        return grow(torch.lerp(tree.leaves, new, place[:, :, None]), self._join)

    def _rewritten(self, leaves: Tensor, hidden: Tensor) -> Float[Tensor, "batch leaf d_node"]:
        both = _with_state(leaves, hidden)
        return torch.lerp(leaves, self.written(both), self.is_written(both).sigmoid())

    def _join(self, left: Tensor, right: Tensor) -> Float[Tensor, "batch node d_node"]:
        return self.joined((left + right) / 2 + self.join(torch.cat([left, right], dim=2)))

    def _turn(self, hidden: Tensor) -> Turn:
        return lambda nodes: self.search(_with_state(nodes, hidden))[..., 0]


def _layers(d_input: int, d_hidden: int, d_output: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d_input, d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_output))


def _with_state(nodes: Tensor, hidden: Tensor) -> Float[Tensor, "batch node d_both"]:
    """Each node with the state of the controller."""
    return torch.cat([nodes, hidden[:, None].expand(-1, nodes.shape[1], -1)], dim=2)
