"""The Neural Turing Machine is what the paper's equations say, step by step."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.models.ntm import Ntm

BATCH, STEPS, D_INPUT, D_OUTPUT, HIDDEN, SLOTS, WIDTH = 2, 6, 3, 5, 11, 7, 4


def machine(n_reads=1, n_writes=1, n_slots=SLOTS):
    torch.manual_seed(n_reads + 10 * n_writes)
    made = Ntm(
        d_input=D_INPUT,
        d_output=D_OUTPUT,
        d_hidden=HIDDEN,
        n_slots=n_slots,
        d_slot=WIDTH,
        n_reads=n_reads,
        n_writes=n_writes,
    )
    for weight in made.parameters():  # large enough for every gate to matter
        weight.data.mul_(2)
    return made


@pytest.fixture
def inputs():
    return torch.randn(BATCH, STEPS, D_INPUT, generator=torch.Generator().manual_seed(0))


def by_loops(model, sequence):
    """One sequence; the paper's equations 2 to 9 for each head and slot in turn."""
    kernel = model.controller.kernel
    hidden, cell = torch.zeros(1, HIDDEN), torch.zeros(1, HIDDEN)
    n_heads = model.n_reads + model.n_writes
    memory = torch.zeros(SLOTS, WIDTH)
    weights = [torch.eye(SLOTS)[0] for _ in range(n_heads)]
    seen = torch.zeros(model.n_reads * WIDTH)
    said = []
    for x in sequence:
        step = torch.cat([x, seen])[None, None]
        output, (hidden, cell) = kernel(step, (hidden.view(1, 1, -1), cell.view(1, 1, -1)))
        h = output[0, 0]
        emitted, pens = model.emit(h).split([n_heads * (WIDTH + 6), model.n_writes * 2 * WIDTH])
        emitted = emitted.view(n_heads, -1)
        for head in range(n_heads):
            weights[head] = one_head(emitted[head], memory, weights[head])
        pens = pens.view(model.n_writes, 2, WIDTH)
        writers = weights[model.n_reads :]
        for weight, (erase, _) in zip(writers, pens, strict=True):
            memory = memory * (1 - torch.outer(weight, erase.sigmoid()))
        for weight, (_, add) in zip(writers, pens, strict=True):
            memory = memory + torch.outer(weight, add.tanh())
        seen = torch.cat([weight @ memory for weight in weights[: model.n_reads]])
        said.append(model.output(torch.cat([h, seen])))
    return torch.stack(said), torch.stack(weights)


def one_head(numbers, memory, before):
    key, strength, sharpness, gate, shift = numbers.split([WIDTH, 1, 1, 1, 3])
    key = key.tanh()
    near = torch.stack(
        [(key @ slot) / (key.norm() * slot.norm()).clamp_min(1e-2) for slot in memory]
    )
    content = (functional.softplus(strength) * near).softmax(0)
    mixed = gate.sigmoid() * content + (1 - gate.sigmoid()) * before
    moves = shift.softmax(0)
    moved = torch.stack(
        [
            sum(mixed[(slot - by) % SLOTS] * moves[by + 1] for by in (-1, 0, 1))
            for slot in range(SLOTS)
        ]
    )
    power = moved ** (1 + functional.softplus(sharpness))
    return power / power.sum()


@pytest.mark.parametrize(("n_reads", "n_writes"), [(1, 1), (2, 3)])
def test_a_batch_agrees_with_loops_over_sequences_heads_and_slots(inputs, n_reads, n_writes):
    model = machine(n_reads, n_writes)
    taped = model.run(inputs)
    for row, sequence in enumerate(inputs):
        said, weights = by_loops(model, sequence)
        torch.testing.assert_close(taped.logits[row], said, atol=1e-5, rtol=1e-4)
        last = torch.cat([taped.reads[row, -1], taped.writes[row, -1]])
        torch.testing.assert_close(last, weights, atol=1e-5, rtol=1e-4)


def test_the_gradient_agrees_with_that_of_the_loops(inputs):
    model = machine()
    factor = torch.randn(BATCH, STEPS, D_OUTPUT, generator=torch.Generator().manual_seed(1))
    weights = list(model.controller.kernel.all_weights[0][:3]) + [
        weight for name, weight in model.named_parameters() if "controller" not in name
    ]
    found = torch.autograd.grad((model(inputs) * factor).sum(), weights)
    slow = torch.stack([by_loops(model, sequence)[0] for sequence in inputs])
    expected = torch.autograd.grad((slow * factor).sum(), weights)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_weights_of_every_head_sum_to_one_and_what_comes_later_changes_nothing(inputs):
    model = machine(2, 2)
    taped = model.run(inputs)
    for weights in (taped.reads, taped.writes):
        assert weights.shape == (BATCH, STEPS, 2, SLOTS)
        torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, STEPS, 2))
    torch.testing.assert_close(model(inputs[:, :4]), taped.logits[:, :4])


def test_a_machine_can_be_given_more_slots_than_it_was_trained_with(inputs):
    model, larger = machine(), machine(n_slots=23)
    larger.load_state_dict(model.state_dict())
    for found, expected in zip(model.run(inputs, 23), larger.run(inputs), strict=True):
        torch.testing.assert_close(found, expected)
    assert not torch.allclose(model.run(inputs, 23).logits, model.run(inputs).logits, atol=1e-3)


def test_a_long_sequence_has_a_finite_gradient():
    model = machine()
    model(torch.randn(BATCH, 150, D_INPUT)).square().mean().backward()
    assert all(w.grad.isfinite().all() for w in model.parameters() if w.grad is not None)
