"""The DNC writes where nothing is in use."""

import pytest
import torch

from saccade.zoo.memories.addressing import allocation_weights, next_usage

BATCH, HEADS, SLOTS = 2, 3, 7


def test_usage_agrees_with_loops_over_slots_and_heads():
    generator = torch.Generator().manual_seed(0)
    usage, write = torch.rand(2, BATCH, SLOTS, generator=generator)
    reads = torch.rand(BATCH, HEADS, SLOTS, generator=generator).softmax(-1)
    free = torch.rand(BATCH, HEADS, generator=generator)
    found = next_usage(usage, write_weights=write, read_weights=reads, free=free)
    for row in range(BATCH):
        for slot in range(SLOTS):
            expected = usage[row, slot] + write[row, slot] - usage[row, slot] * write[row, slot]
            for head in range(HEADS):
                expected = expected * (1 - free[row, head] * reads[row, head, slot])
            torch.testing.assert_close(found[row, slot], expected)
    assert ((found >= 0) & (found <= 1)).all()


def test_a_slot_that_is_read_and_let_go_is_free_again():
    full, here = torch.ones(1, SLOTS), torch.eye(SLOTS)[[4]]
    found = next_usage(
        full, write_weights=0 * full, read_weights=here[:, None], free=torch.ones(1, 1)
    )
    assert found[0, 4] == 0 and (found.sum() == SLOTS - 1)


def test_allocation_agrees_with_a_loop_in_the_order_of_usage():
    usage = torch.rand(BATCH, SLOTS, generator=torch.Generator().manual_seed(1))
    found = allocation_weights(usage)
    for row in range(BATCH):
        before = 1.0
        for slot in usage[row].argsort().tolist():
            expected = (1 - usage[row, slot].item()) * before
            assert found[row, slot].item() == pytest.approx(expected, abs=1e-5)
            before *= usage[row, slot].item()


def test_the_next_free_slot_is_taken_when_one_is_full():
    usage = torch.zeros(1, SLOTS)
    taken = []
    for _ in range(SLOTS):
        weights = allocation_weights(usage)
        taken.append(weights.argmax().item())
        usage = usage.index_fill(1, torch.tensor(taken[-1:]), 1.0)
    assert sorted(taken) == list(range(SLOTS))
    assert allocation_weights(torch.ones(1, SLOTS)).sum() < 1e-5


def test_allocation_sends_a_finite_gradient_where_slots_are_alike():
    usage = torch.zeros(BATCH, SLOTS, requires_grad=True)
    allocation_weights(usage)[:, 2].sum().backward()
    assert usage.grad is not None and usage.grad.isfinite().all()
