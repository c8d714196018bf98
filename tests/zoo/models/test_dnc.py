"""The Differentiable Neural Computer is what the paper's Methods say, step by step."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.models.dnc import Dnc

BATCH, STEPS, D_INPUT, D_OUTPUT, HIDDEN, SLOTS, WIDTH = 2, 6, 3, 5, 11, 7, 4


def machine(n_reads=2):
    torch.manual_seed(n_reads)
    made = Dnc(
        d_input=D_INPUT,
        d_output=D_OUTPUT,
        d_hidden=HIDDEN,
        n_slots=SLOTS,
        d_slot=WIDTH,
        n_reads=n_reads,
    )
    for weight in made.parameters():  # large enough for every gate to matter
        weight.data.mul_(2)
    return made


@pytest.fixture
def inputs():
    return torch.randn(BATCH, STEPS, D_INPUT, generator=torch.Generator().manual_seed(0))


def looked_up(key, memory, strength):
    near = [(key @ slot) / (key.norm() * slot.norm()).clamp_min(1e-2) for slot in memory]
    return (strength * torch.stack(near)).softmax(0)


def allocated(usage):
    weights, before = torch.zeros(SLOTS), torch.ones(())
    for slot in usage.argsort(stable=True).tolist():
        weights[slot] = (1 - usage[slot]) * before
        before = before * usage[slot]
    return weights


@torch.no_grad()
def by_loops(model, sequence):
    """One sequence, in the words of the paper's Methods."""
    n, oneplus = model.n_reads, lambda x: 1 + functional.softplus(x)
    hidden, cell = torch.zeros(1, 1, HIDDEN), torch.zeros(1, 1, HIDDEN)
    memory, usage = torch.zeros(SLOTS, WIDTH), torch.zeros(SLOTS)
    link, precedence = torch.zeros(SLOTS, SLOTS), torch.zeros(SLOTS)
    reads, write, seen = torch.zeros(n, SLOTS), torch.zeros(SLOTS), torch.zeros(n * WIDTH)
    said = []
    for x in sequence:
        output, (hidden, cell) = model.controller.kernel(
            torch.cat([x, seen])[None, None], (hidden, cell)
        )
        h = output[0, 0]
        heads = model.read_heads(h).view(n, -1)
        key, erase, add, strength, allocates, writes = model.write_head(h).split(
            [WIDTH, WIDTH, WIDTH, 1, 1, 1]
        )
        usage = usage + write - usage * write
        for head in range(n):
            usage = usage * (1 - heads[head, WIDTH + 1].sigmoid() * reads[head])
        found = looked_up(key.tanh(), memory, oneplus(strength))
        room = allocated(1e-6 + (1 - 1e-6) * usage)
        gate = allocates.sigmoid()
        write = writes.sigmoid() * (gate * room + (1 - gate) * found)
        memory = memory * (1 - torch.outer(write, erase.sigmoid()))
        memory = memory + torch.outer(write, add.tanh())
        new = torch.zeros_like(link)
        for i in range(SLOTS):
            for j in range(SLOTS):
                if i != j:
                    new[i, j] = (1 - write[i] - write[j]) * link[i, j] + write[i] * precedence[j]
        link, precedence = new, (1 - write.sum()) * precedence + write
        placed = []
        for head in range(n):
            modes = heads[head, WIDTH + 2 :].softmax(0)
            content = looked_up(heads[head, :WIDTH].tanh(), memory, oneplus(heads[head, WIDTH]))
            placed.append(
                modes[0] * (link.T @ reads[head])
                + modes[1] * content
                + modes[2] * (link @ reads[head])
            )
        reads = torch.stack(placed)
        seen = (reads @ memory).flatten()
        said.append(model.output(torch.cat([h, seen])))
    return torch.stack(said), reads, write


@pytest.mark.parametrize("n_reads", [1, 2])
def test_a_batch_agrees_with_loops_over_sequences_heads_and_slots(inputs, n_reads):
    model = machine(n_reads)
    taped = model.run(inputs)
    for row, sequence in enumerate(inputs):
        said, reads, write = by_loops(model, sequence)
        torch.testing.assert_close(taped.logits[row], said, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(taped.reads[row, -1], reads, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(taped.writes[row, -1, 0], write, atol=1e-4, rtol=1e-3)


def test_no_head_has_more_weight_than_one_and_what_comes_later_changes_nothing(inputs):
    model = machine()
    taped = model.run(inputs)
    assert taped.reads.shape == (BATCH, STEPS, 2, SLOTS)
    assert taped.writes.shape == (BATCH, STEPS, 1, SLOTS)
    for weights in (taped.reads, taped.writes):
        assert (weights >= 0).all() and (weights.sum(-1) <= 1 + 1e-5).all()
    torch.testing.assert_close(model(inputs[:, :4]), taped.logits[:, :4])
    assert model.run(inputs, 13).reads.shape[-1] == 13


def test_a_sequence_longer_than_the_memory_has_a_finite_gradient():
    model = machine()
    model(torch.randn(BATCH, 60, D_INPUT)).square().mean().backward()
    assert all(w.grad.isfinite().all() for w in model.parameters() if w.grad is not None)
