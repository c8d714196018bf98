"""A sparse memory holds what a dense one would, and its gradient is the same."""

import torch

from saccade.zoo.memories.sparse import SparseMemory

BATCH, SLOTS, WIDTH, STEPS = 2, 11, 3, 5


def written(memory, contents):
    """Write some rows step by step, to slots that overlap from step to step."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.zeros(BATCH, SLOTS, WIDTH)
    for rows in contents:
        slots = torch.stack([torch.randperm(SLOTS, generator=generator)[:4] for _ in range(BATCH)])
        memory.write(slots, rows)
        dense = dense.scatter(1, slots[:, :, None].expand_as(rows), rows)
    return dense


def test_every_slot_holds_what_was_written_last_and_gradients_agree_with_a_dense_memory():
    contents = torch.randn(STEPS, BATCH, 4, WIDTH, generator=torch.Generator().manual_seed(0))
    contents.requires_grad_()
    memory = SparseMemory.empty(BATCH, n_slots=SLOTS, d_slot=WIDTH, like=torch.zeros(()))
    dense = written(memory, contents)
    slots = torch.arange(SLOTS).expand(BATCH, -1)
    held = memory.rows(slots)
    assert torch.equal(held, dense)
    factor = torch.randn(BATCH, SLOTS, WIDTH, generator=torch.Generator().manual_seed(1))
    (sparse,) = torch.autograd.grad((held * factor).sum(), contents, retain_graph=True)
    (expected,) = torch.autograd.grad((dense * factor).sum(), contents)
    torch.testing.assert_close(sparse, expected)


def test_the_nearest_slots_are_those_of_the_largest_cosine():
    contents = torch.randn(STEPS, BATCH, 4, WIDTH, generator=torch.Generator().manual_seed(0))
    memory = SparseMemory.empty(BATCH, n_slots=SLOTS, d_slot=WIDTH, like=torch.zeros(()))
    dense = written(memory, contents)
    keys = torch.randn(BATCH, 2, WIDTH, generator=torch.Generator().manual_seed(5))
    near = torch.nn.functional.cosine_similarity(keys[:, :, None], dense[:, None], dim=-1)
    assert torch.equal(memory.nearest(keys, 3), near.topk(3, dim=-1).indices)


def test_slots_are_taken_in_order_and_then_the_one_not_used_for_longest():
    memory = SparseMemory.empty(1, n_slots=3, d_slot=WIDTH, like=torch.zeros(()))
    taken = []
    for now in range(4):
        slot = memory.least_used()
        memory.touch(slot, torch.ones(1, 1), now=now)
        taken.append(slot.item())
    assert taken == [0, 1, 2, 0]
    memory.touch(torch.tensor([[1]]), torch.tensor([[0.001]]), now=4)  # too little to count
    assert memory.least_used().item() == 1
    memory.touch(torch.tensor([[1, 1]]), torch.tensor([[0.9, 0.001]]), now=5)
    assert memory.least_used().item() == 2
