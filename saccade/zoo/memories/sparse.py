"""A large memory with sparse access: the cost of a step depends on the few slots it uses.

Rae et al., 2016, Scaling Memory-Augmented Neural Networks with Sparse Reads and Writes
(https://arxiv.org/abs/1610.09027), section 3. A dense memory is copied at every step that writes
it, because the gradient needs its previous content. Here every written row is kept in a log
instead, and a table maps each slot to its row of the log: the gradient goes only through the rows
that were read.
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
    """Slots that are all empty at first. Belongs to one forward pass and is changed in place.

    >>> memory = SparseMemory.empty(1, n_slots=5, d_slot=2, like=torch.zeros(()))
    >>> memory.write(torch.tensor([[3]]), torch.tensor([[[0.0, 2.0]]]))
    >>> memory.nearest(torch.tensor([[[0.0, 1.0]]]), 1), memory.rows(torch.tensor([[3, 0]]))
    (tensor([[[3]]]), tensor([[[0., 2.],
             [0., 0.]]]))
    """

    directions: Float[Tensor, "batch slot d_slot"]
    """The content of each slot, normalised and without gradient, for search."""
    row_of: Int[Tensor, "batch slot"]
    """The row of the log that holds each slot's content."""
    last_used: Int[Tensor, "batch slot"]
    """Time of each slot's last read or write; initially the order of allocation."""
    log: list[Float[Tensor, "batch row d_slot"]] = field(default_factory=list)
    """All rows written so far, step by step; the first is the empty row."""

    @classmethod
    def empty(
        cls, n: int, *, n_slots: int, d_slot: int, like: Float[Tensor, "..."]
    ) -> SparseMemory:
        """An empty memory for ``n`` sequences, with the device and dtype of ``like``."""
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
        """The ``n`` slots with the largest cosine similarity to each key.

        Where we differ: the paper uses an approximate nearest-neighbour index, whose cost is
        logarithmic in the memory size; here it is one product with the whole memory, without
        gradient.
        """
        return (keys @ self.directions.mT).topk(n, dim=2).indices

    def rows(self, slots: Int[Tensor, "batch some"]) -> Float[Tensor, "batch some d_slot"]:
        """The content of these slots, with gradient."""
        written = torch.cat(self.log, dim=1)  # [batch, row, d_slot]
        at = self.row_of.gather(1, slots)
        return written.gather(1, at[:, :, None].expand(-1, -1, written.shape[2]))

    def write(
        self, slots: Int[Tensor, "batch some"], contents: Float[Tensor, "batch some d_slot"]
    ) -> None:
        """Write new contents to slots; a slot that occurs twice must get the same content twice."""
        first = sum(rows.shape[1] for rows in self.log)
        self.log.append(contents)
        at = torch.arange(first, first + slots.shape[1], device=slots.device)
        self.row_of.scatter_(1, slots, at.expand_as(slots))
        direction = functional.normalize(contents.detach(), dim=-1, eps=SHORTEST)
        self.directions.scatter_(1, slots[:, :, None].expand_as(direction), direction)

    def least_used(self) -> Int[Tensor, "batch 1"]:
        """The least recently used slot of each sequence."""
        return self.last_used.argmin(1, keepdim=True)

    def touch(
        self, slots: Int[Tensor, "batch some"], weights: Float[Tensor, "batch some"], *, now: int
    ) -> None:
        """Mark slots with more than a small weight as used now."""
        before = self.last_used.gather(1, slots)
        used = torch.where(weights > NOTICED, now, before)
        # The maximum: a slot may occur twice, with a large weight and a small one.
        self.last_used.scatter_reduce_(1, slots, used, "amax")
