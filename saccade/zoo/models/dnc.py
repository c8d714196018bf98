"""The Differentiable Neural Computer: a memory with allocation and temporal links."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.attention.attend import read
from saccade.zoo.cells.lstm import LstmCell, LstmState
from saccade.zoo.fast.forms import upcast
from saccade.zoo.memories.addressing import (
    Links,
    allocation_weights,
    content_weights,
    follow,
    next_links,
    next_usage,
    no_links,
    write_slots,
)
from saccade.zoo.models.ntm import Taped


class DncState(NamedTuple):
    """All that is carried from step to step."""

    controller: LstmState
    memory: Float[Tensor, "batch slot d_slot"]
    usage: Float[Tensor, "batch slot"]
    links: Links
    reads: Float[Tensor, "batch head slot"]
    write: Float[Tensor, "batch slot"]
    context: Float[Tensor, "batch d_read"]
    """The vectors of all read heads, concatenated."""


class Emitted(NamedTuple):
    """The interface vector of the controller, split and squashed."""

    read_keys: Float[Tensor, "batch head d_slot"]
    read_strength: Float[Tensor, "batch head"]
    modes: Float[Tensor, "batch head 3"]
    """Read modes of each head: backward, content, forward."""
    free: Float[Tensor, "batch head"]
    write_key: Float[Tensor, "batch 1 d_slot"]
    write_strength: Float[Tensor, "batch 1"]
    erase: Float[Tensor, "batch 1 d_slot"]
    add: Float[Tensor, "batch 1 d_slot"]
    allocation_gate: Float[Tensor, "batch 1"]
    write_gate: Float[Tensor, "batch 1"]


class Dnc(nn.Module):
    """An LSTM with a memory that it allocates, writes, searches and follows by links.

    Graves et al., 2016 (https://doi.org/10.1038/nature20101), Methods. At each step::

        h = LSTM([x; what was read last])
        w = write_gate (allocation_gate allocation(usage) + (1 - allocation_gate) content(key, M))
        M <- erase and add by w;  links <- links with w
        r = modes . (backward(links, r), content(keys, M), forward(links, r))     of each read head
        y = W [h; r M]

    Where we differ: the controller has one layer; keys and written vectors go through tanh, as in
    `Ntm`, which keeps long training stable.

    Args:
        n_reads: Number of read heads; there is one write head, as in the paper.

    >>> machine = Dnc(d_input=3, d_output=2, d_hidden=5, n_slots=7, d_slot=4)
    >>> machine(torch.zeros(2, 11, 3)).shape
    torch.Size([2, 11, 2])
    """

    def __init__(
        self,
        *,
        d_input: int,
        d_output: int,
        d_hidden: int = 100,
        n_slots: int = 32,
        d_slot: int = 20,
        n_reads: int = 1,
    ) -> None:
        super().__init__()
        self.n_slots, self.d_slot, self.n_reads = n_slots, d_slot, n_reads
        self.controller = LstmCell(d_input + n_reads * d_slot, d_hidden)
        # Of each read head: key, strength, free gate, modes. Of the write head: key, erase, add,
        # strength, allocation gate, write gate.
        self.read_sizes = (d_slot, 1, 1, 3)
        self.write_sizes = (d_slot, d_slot, d_slot, 1, 1, 1)
        self.read_heads = nn.Linear(d_hidden, n_reads * sum(self.read_sizes))
        self.write_head = nn.Linear(d_hidden, sum(self.write_sizes))
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
        shown, reads, writes = [], [], []
        for x in inputs.unbind(1):
            state = self.step(x, state)
            shown.append(torch.cat([state.controller.hidden, state.context], dim=1))
            reads.append(state.reads)
            writes.append(state.write[:, None])
        return Taped(
            logits=self.output(torch.stack(shown, dim=1)),
            reads=torch.stack(reads, dim=1),
            writes=torch.stack(writes, dim=1),
        )

    def start(self, n: int, n_slots: int) -> DncState:
        """An empty, unallocated memory for ``n`` sequences."""
        zeros = self.controller.zeros
        memory = zeros(n, n_slots, self.d_slot)
        return DncState(
            controller=self.controller.start(n),
            memory=memory,
            usage=zeros(n, n_slots),
            links=no_links(memory),
            reads=zeros(n, self.n_reads, n_slots),
            write=zeros(n, n_slots),
            context=zeros(n, self.n_reads * self.d_slot),
        )

    def step(self, x: Float[Tensor, "batch d_input"], state: DncState) -> DncState:
        """Run the controller, allocate, write, link, read."""
        seen = torch.cat([x, state.context], dim=1)
        hidden, controller = self.controller.step(seen, state.controller)
        emitted = self._emit(hidden)
        usage = next_usage(
            state.usage, write_weights=state.write, read_weights=state.reads, free=emitted.free
        )
        found = content_weights(
            emitted.write_key, state.memory, strength=emitted.write_strength
        ).squeeze(1)
        write = emitted.write_gate * torch.lerp(
            found, allocation_weights(usage), emitted.allocation_gate
        )
        memory = write_slots(state.memory, write[:, None], erase=emitted.erase, add=emitted.add)
        links = next_links(state.links, write)
        reads = self._place_reads(emitted, memory, links, state.reads)
        context = read(reads, memory).flatten(1)
        return DncState(controller, memory, usage, links, reads, write, context)

    def _place_reads(
        self, emitted: Emitted, memory: Tensor, links: Links, before: Tensor
    ) -> Float[Tensor, "batch head slot"]:
        content = content_weights(emitted.read_keys, memory, strength=emitted.read_strength)
        on, back = follow(links, before)
        backward, by_content, forward = emitted.modes[..., None].unbind(2)  # [batch, head, 1]
        return backward * back + by_content * content + forward * on

    def _emit(self, hidden: Float[Tensor, "batch d_hidden"]) -> Emitted:
        of_reads, of_write = upcast(self.read_heads(hidden)), upcast(self.write_head(hidden))
        of_reads = of_reads.unflatten(1, (self.n_reads, -1))
        key, strength, free, modes = of_reads.split(self.read_sizes, dim=2)
        write_key, erase, add, *scalars = of_write.split(self.write_sizes, dim=1)
        write_strength, allocation_gate, write_gate = scalars
        return Emitted(
            read_keys=key.tanh(),
            read_strength=1 + functional.softplus(strength[..., 0]),
            modes=modes.softmax(-1),
            free=free[..., 0].sigmoid(),
            write_key=write_key[:, None].tanh(),
            write_strength=1 + functional.softplus(write_strength),
            erase=erase[:, None].sigmoid(),
            add=add[:, None].tanh(),
            allocation_gate=allocation_gate.sigmoid(),
            write_gate=write_gate.sigmoid(),
        )
