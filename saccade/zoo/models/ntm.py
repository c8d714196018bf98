"""The Neural Turing Machine: a recurrent network with a memory that it reads and writes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.zoo.attention.attend import read
from saccade.zoo.cells.lstm import LstmCell, LstmState
from saccade.zoo.memories.addressing import init_moving_heads, place_heads, write_slots


class Taped(NamedTuple):
    """Outputs of a memory machine, and the weights of its heads."""

    logits: Float[Tensor, "batch pos d_output"]
    reads: Float[Tensor, "batch pos read_head slot"]
    writes: Float[Tensor, "batch pos write_head slot"]


class NtmState(NamedTuple):
    """All that is carried from step to step."""

    controller: LstmState
    memory: Float[Tensor, "batch slot d_slot"]
    weights: Float[Tensor, "batch head slot"]
    """Weights of the read heads, then of the write heads."""
    context: Float[Tensor, "batch d_read"]
    """The vectors of all read heads, concatenated."""


class Ntm(nn.Module):
    """A controller that moves heads over a memory.

    Graves, Wayne and Danihelka, 2014 (https://arxiv.org/abs/1410.5401), section 3. At each step::

        h = LSTM([x; what was read last])
        of each head, from h: key, strength, gate, shift, sharpness       (3.3)
        weights = locate(content(key, M), weights before, ...)            equations 5 to 9
        M <- erase and add, by the write heads                            equations 3 and 4
        what is read = weights M, by the read heads                       equation 2
        y = W [h; what is read]

    Where we differ: all heads are addressed by the memory before this step, and then read the
    memory after it, so that one batched operation serves them all. Keys and added vectors go
    through tanh. The memory is initially empty, and every head is on the first slot: no parameter
    depends on the number of slots, and `run` may use more than in training. Collier and Beel, 2018
    (https://arxiv.org/abs/1807.08518) also found that a constant initial memory learns fastest. An
    untrained write head moves by one slot per step and stays sharp, like that of a tape recorder:
    one with random shifts blurs over the whole memory within a few steps, and the written contents
    mix. A read head starts half by content: one that only shifts never learns content-based
    addressing.

    Args:
        reach: Largest shift of a head per step, in slots.

    >>> machine = Ntm(d_input=3, d_output=2, d_hidden=5, n_slots=7, d_slot=4)
    >>> machine(torch.zeros(2, 11, 3)).shape
    torch.Size([2, 11, 2])
    """

    def __init__(
        self,
        *,
        d_input: int,
        d_output: int,
        d_hidden: int = 100,
        n_slots: int = 128,
        d_slot: int = 20,
        n_reads: int = 1,
        n_writes: int = 1,
        reach: int = 1,
    ) -> None:
        super().__init__()
        self.n_slots, self.d_slot = n_slots, d_slot
        self.n_reads, self.n_writes = n_reads, n_writes
        self.controller = LstmCell(d_input + n_reads * d_slot, d_hidden)
        # Of each head: key, strength, sharpness, gate, shift. Of each write head: erase, add.
        self.d_head = d_slot + 3 + 2 * reach + 1
        d_heads = (n_reads + n_writes) * self.d_head
        self.emit = nn.Linear(d_hidden, d_heads + n_writes * 2 * d_slot)
        with torch.no_grad():
            said = self.emit.bias[:d_heads].unflatten(0, (-1, self.d_head))
            init_moving_heads(said, d_slot, n_reads=n_reads)
        self.output = nn.Linear(d_hidden + n_reads * d_slot, d_output)

    def forward(
        self, inputs: Float[Tensor, "batch pos d_input"]
    ) -> Float[Tensor, "batch pos d_output"]:
        """Logits at every step."""
        return self.run(inputs).logits

    def run(self, inputs: Float[Tensor, "batch pos d_input"], n_slots: int | None = None) -> Taped:
        """Read whole sequences and record the heads' weights.

        Args:
            n_slots: Default: as many as in training.
        """
        state = self.start(len(inputs), self.n_slots if n_slots is None else n_slots)
        shown, weights = [], []
        for x in inputs.unbind(1):
            state = self.step(x, state)
            shown.append(torch.cat([state.controller.hidden, state.context], dim=1))
            weights.append(state.weights)
        by_step = torch.stack(weights, dim=1)  # [batch, pos, head, slot]
        return Taped(
            logits=self.output(torch.stack(shown, dim=1)),
            reads=by_step[:, :, : self.n_reads],
            writes=by_step[:, :, self.n_reads :],
        )

    def start(self, n: int, n_slots: int) -> NtmState:
        """An empty tape with all heads on its first slot, for ``n`` sequences."""
        zeros = self.controller.zeros
        weights = zeros(n, self.n_reads + self.n_writes, n_slots)
        weights[:, :, 0] = 1.0
        return NtmState(
            controller=self.controller.start(n),
            memory=zeros(n, n_slots, self.d_slot),
            weights=weights,
            context=zeros(n, self.n_reads * self.d_slot),
        )

    def step(self, x: Float[Tensor, "batch d_input"], state: NtmState) -> NtmState:
        """Run the controller, address, write, read."""
        seen = torch.cat([x, state.context], dim=1)
        hidden, controller = self.controller.step(seen, state.controller)
        n_heads, d_head = self.n_reads + self.n_writes, self.d_head
        heads, pens = self.emit(hidden).tensor_split([n_heads * d_head], dim=1)
        weights = place_heads(heads.unflatten(1, (n_heads, d_head)), state.memory, state.weights)
        erase, add = pens.unflatten(1, (self.n_writes, 2, -1)).unbind(2)
        memory = write_slots(
            state.memory, weights[:, self.n_reads :], erase=erase.sigmoid(), add=add.tanh()
        )
        context = read(weights[:, : self.n_reads], memory).flatten(1)
        return NtmState(controller, memory, weights, context)
