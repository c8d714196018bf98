"""A large memory of which a step touches few slots, and pays for no more.

Rae et al., 2016, Scaling Memory-Augmented Neural Networks with Sparse Reads and Writes
(https://arxiv.org/abs/1610.09027), section 3. A dense memory is copied at every step that writes
it, because the gradient needs what it held before. Here every row that is written is kept in a log
instead, and a table says which row of the log a slot holds now: the gradient goes through the rows
that were read, and through nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from saccade.zoo.memories.addressing import SHORTEST

# Below this weight a slot does not count as used; the paper's delta.
NOTICED = 0.005


@dataclass
class SparseMemory:
    """Slots that are all empty at first. It belongs to one walk, and is changed in place.

    >>> memory = SparseMemory.empty(1, n_slots=5, d_slot=2, like=torch.zeros(()))
    >>> memory.write(torch.tensor([[3]]), torch.tensor([[[0.0, 2.0]]]))
    >>> memory.nearest(torch.tensor([[[0.0, 1.0]]]), 1), memory.rows(torch.tensor([[3, 0]]))
    (tensor([[[3]]]), tensor([[[0., 2.],
             [0., 0.]]]))
    """

    directions: Float[Tensor, "batch slot d_slot"]
    """What each slot holds, at length 1 and without gradient: to be searched."""
    row_of: Int[Tensor, "batch slot"]
    """Where in the log each slot's content is."""
    last_used: Int[Tensor, "batch slot"]
    """When each slot was last read or written; before that, the order in which they are taken."""
    log: list[Float[Tensor, "batch row d_slot"]] = field(default_factory=list)
    """All rows that were ever written, step by step; the first is the empty one."""

    @classmethod
    def empty(
        cls, n: int, *, n_slots: int, d_slot: int, like: Float[Tensor, "..."]
    ) -> SparseMemory:
        """For ``n`` sequences, where ``like`` is and in its number type."""
        order = torch.arange(n_slots, device=like.device).expand(n, -1)
        return cls(
            directions=like.new_zeros(n, n_slots, d_slot),
            row_of=torch.zeros_like(order),
            last_used=order - n_slots,
            log=[like.new_zeros(n, 1, d_slot)],
        )

    @torch.no_grad()
    def nearest(
        self, keys: Float[Tensor, "batch head d_slot"], n: int
    ) -> Int[Tensor, "batch head n"]:
        """The ``n`` slots whose content points most in the direction of each key.

        Where we differ: the paper asks an index of approximate neighbours, whose cost grows with
        the logarithm of the memory; here it is one product with all of it, without gradient.
        """
        return (keys @ self.directions.mT).topk(n, dim=2).indices

    def rows(self, slots: Int[Tensor, "batch some"]) -> Float[Tensor, "batch some d_slot"]:
        """What these slots hold, with its gradient."""
        written = torch.cat(self.log, dim=1)  # [batch, row, d_slot]
        at = self.row_of.gather(1, slots)
        return written.gather(1, at[:, :, None].expand(-1, -1, written.shape[2]))

    def write(
        self, slots: Int[Tensor, "batch some"], contents: Float[Tensor, "batch some d_slot"]
    ) -> None:
        """Put new contents into slots; a slot that is named twice must get the same twice."""
        first = sum(rows.shape[1] for rows in self.log)
        self.log.append(contents)
        at = torch.arange(first, first + slots.shape[1], device=slots.device)
        self.row_of.scatter_(1, slots, at.expand_as(slots))
        direction = functional.normalize(contents.detach(), dim=-1, eps=SHORTEST)
        self.directions.scatter_(1, slots[:, :, None].expand_as(direction), direction)

    def least_used(self) -> Int[Tensor, "batch 1"]:
        """The slot of each sequence that was not read or written for longest."""
        return self.last_used.argmin(1, keepdim=True)

    def touch(
        self, slots: Int[Tensor, "batch some"], weights: Float[Tensor, "batch some"], *, now: int
    ) -> None:
        """Slots with more than a trace of weight are in use now."""
        before = self.last_used.gather(1, slots)
        used = torch.where(weights > NOTICED, now, before)
        # The largest: a slot may be named twice, with much weight and with little.
        self.last_used.scatter_reduce_(1, slots, used, "amax")
