"""Sparse access memory: a Neural Turing Machine with sparse reads and writes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.memories.addressing import content_weights
from saccade.zoo.memories.sparse import SparseMemory
from saccade.zoo.models.ntm import Taped


class Accessed(NamedTuple):
    """The accessed slots of each sequence and their weights; a slot may occur twice."""

    slots: Int[Tensor, "batch some"]
    weights: Float[Tensor, "batch some"]


class _Unrolled(NamedTuple):
    """Outputs of the controller at each step, and the accessed slots."""

    shown: Float[Tensor, "batch pos d_shown"]
    reads: list[Accessed]
    writes: list[Accessed]


class SparseAccessMemory(nn.Module):
    """SAM: reads the slots nearest to a key, writes to slots just read or least recently used.

    Rae et al., 2016 (https://arxiv.org/abs/1610.09027), section 3. At each step::

        h = LSTM([x; what was read last])
        u = the least recently used slot, which is erased
        w = alpha (gamma r_before + (1 - gamma) one(u));   M <- M + w a           write
        r = softmax over the k slots nearest to a key                             read
        y = W [h; what was read]

    Where we differ: see `SparseMemory.nearest`; and the slot to be reused is found by a search over
    all of them, without gradient, where the paper keeps a ring buffer.

    Args:
        n_nearest: Number of slots that a head reads; small.

    >>> machine = SparseAccessMemory(d_input=3, d_output=2, d_hidden=5, n_slots=31, d_slot=4)
    >>> machine(torch.zeros(2, 11, 3)).shape
    torch.Size([2, 11, 2])
    """

    def __init__(
        self,
        *,
        d_input: int,
        d_output: int,
        d_hidden: int = 100,
        n_slots: int = 4096,
        d_slot: int = 32,
        n_reads: int = 1,
        n_nearest: int = 4,
    ) -> None:
        super().__init__()
        if n_slots <= n_reads * n_nearest:
            raise UsageError(
                f"{n_slots} slots are too few for {n_reads} heads that read {n_nearest} each",
                hint="a sparse memory has more slots than a step accesses",
            )
        self.n_slots, self.d_slot = n_slots, d_slot
        self.n_reads, self.n_nearest = n_reads, n_nearest
        self.controller = LstmCell(d_input + n_reads * d_slot, d_hidden)
        self.read_heads = nn.Linear(d_hidden, n_reads * (d_slot + 1))
        self.pen = nn.Linear(d_hidden, d_slot + 2)
        self.output = nn.Linear(d_hidden + n_reads * d_slot, d_output)

    def forward(
        self, inputs: Float[Tensor, "batch pos d_input"]
    ) -> Float[Tensor, "batch pos d_output"]:
        """Logits at every step."""
        return self.output(self._unroll(inputs, self.n_slots).shown)

    def run(self, inputs: Float[Tensor, "batch pos d_input"], n_slots: int | None = None) -> Taped:
        """The same, with the weights of all slots at every step; most are zero.

        Args:
            n_slots: Default: as many as in training.
        """
        count = self.n_slots if n_slots is None else n_slots
        unrolled = self._unroll(inputs, count)
        return Taped(
            logits=self.output(unrolled.shown),
            reads=torch.stack([_spread(each, count, self.n_reads) for each in unrolled.reads], 1),
            writes=torch.stack([_spread(each, count, 1) for each in unrolled.writes], 1),
        )

    def _unroll(self, inputs: Tensor, n_slots: int) -> _Unrolled:
        n, per_step = len(inputs), self.n_reads * self.n_nearest
        memory = SparseMemory.empty(n, n_slots=n_slots, d_slot=self.d_slot, like=self.pen.weight)
        state = self.controller.start(n)
        context = self.controller.zeros(n, self.n_reads * self.d_slot)
        # Nothing was read before: the slots that are allocated last, with weight zero.
        last = torch.arange(n_slots - per_step, n_slots, device=inputs.device).expand(n, -1)
        accessed = Accessed(last, self.controller.zeros(n, per_step))
        shown, reads, writes = [], [], []
        for now, x in enumerate(inputs.unbind(1)):
            hidden, state = self.controller.step(torch.cat([x, context], dim=1), state)
            writes.append(self._write(memory, hidden, accessed, now))
            accessed, context = self._read(memory, hidden, now)
            reads.append(accessed)
            shown.append(torch.cat([hidden, context], dim=1))
        return _Unrolled(torch.stack(shown, dim=1), reads, writes)

    def _write(self, memory: SparseMemory, hidden: Tensor, read: Accessed, now: int) -> Accessed:
        """Add to the slots just read and to the reused slot."""
        word, alpha, gamma = self.pen(hidden).split((self.d_slot, 1, 1), dim=1)
        alpha, gamma = alpha.sigmoid(), gamma.sigmoid()
        spare = memory.least_used()  # [batch, 1]
        slots = torch.cat([read.slots, spare], dim=1)  # [batch, some]
        weights = alpha * torch.cat([gamma * read.weights / self.n_reads, 1 - gamma], dim=1)
        # A slot that two heads have read gets the sum of both, at each occurrence.
        is_same = (slots[:, :, None] == slots[:, None]).to(weights)
        weights = (is_same @ weights[:, :, None])[..., 0]
        kept = memory.rows(slots) * (slots != spare)[:, :, None]
        memory.write(slots, kept + weights[:, :, None] * word.tanh()[:, None])
        memory.touch(slots, weights, now=now)
        return Accessed(slots, weights)

    def _read(
        self, memory: SparseMemory, hidden: Tensor, now: int
    ) -> tuple[Accessed, Float[Tensor, "batch d_read"]]:
        """The slots nearest to each head's key, weighted by similarity."""
        emitted = self.read_heads(hidden).unflatten(1, (self.n_reads, -1))
        keys, strength = emitted[..., :-1].tanh(), 1 + functional.softplus(emitted[..., -1])
        slots = memory.nearest(keys, self.n_nearest)  # [batch, head, n_nearest]
        rows = memory.rows(slots.flatten(1)).unflatten(1, slots.shape[1:])
        each = (keys.flatten(0, 1)[:, None], rows.flatten(0, 1))  # a head of a sequence is a row
        weights = content_weights(*each, strength=strength.flatten()[:, None])
        context = (weights @ each[1]).unflatten(0, slots.shape[:2]).flatten(1)
        accessed = Accessed(slots.flatten(1), weights.view(len(slots), -1))
        memory.touch(accessed.slots, accessed.weights, now=now)
        return accessed, context


def _spread(accessed: Accessed, n_slots: int, n_heads: int) -> Float[Tensor, "batch head slot"]:
    """Weights of all slots; only accessed slots are not zero."""
    slots = accessed.slots.unflatten(1, (n_heads, -1))
    weights = accessed.weights.unflatten(1, (n_heads, -1))
    # A slot that occurs twice has the same weight twice.
    return weights.new_zeros(*slots.shape[:2], n_slots).scatter(2, slots, weights)
