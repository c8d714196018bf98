"""Writing erases and adds as the paper says, whatever the order of heads."""

import pytest
import torch

from saccade.zoo.memories.addressing import write_slots

BATCH, SLOTS, WIDTH = 2, 7, 5


@pytest.mark.parametrize("heads", [1, 3])
def test_writing_agrees_with_loops_over_heads_slots_and_numbers(heads):
    generator = torch.Generator().manual_seed(heads)
    memory = torch.randn(BATCH, SLOTS, WIDTH, generator=generator)
    weights = torch.rand(BATCH, heads, SLOTS, generator=generator).softmax(-1)
    erase = torch.rand(BATCH, heads, WIDTH, generator=generator)
    add = torch.randn(BATCH, heads, WIDTH, generator=generator)
    expected = memory.clone()
    for row in range(BATCH):
        for slot in range(SLOTS):
            for at in range(WIDTH):
                for head in range(heads):
                    kept = 1 - weights[row, head, slot] * erase[row, head, at]
                    expected[row, slot, at] *= kept
                for head in range(heads):
                    expected[row, slot, at] += weights[row, head, slot] * add[row, head, at]
    before = memory.clone()
    torch.testing.assert_close(write_slots(memory, weights, erase=erase, add=add), expected)
    assert torch.equal(memory, before)


def test_one_head_twice_with_half_the_effect_is_no_special_case():
    memory = torch.ones(BATCH, SLOTS, WIDTH)
    here = torch.eye(SLOTS)[3].expand(BATCH, 1, SLOTS)
    nothing = torch.zeros(BATCH, 1, WIDTH)
    one = write_slots(memory, here, erase=nothing + 1, add=nothing + 4)
    two = write_slots(
        memory,
        here.expand(-1, 2, -1),
        erase=torch.cat([nothing + 1, nothing], 1),
        add=torch.cat([nothing + 1, nothing + 3], 1),
    )
    torch.testing.assert_close(one, two)
    assert (one[:, 3] == 4).all() and (one[:, :3] == 1).all()


def test_the_gradient_of_writing_agrees_with_differences():
    generator = torch.Generator().manual_seed(0)
    sizes = ((BATCH, SLOTS, WIDTH), (BATCH, 1, SLOTS), (BATCH, 1, WIDTH), (BATCH, 1, WIDTH))
    inputs = [torch.randn(size, generator=generator).double().requires_grad_() for size in sizes]

    def write(memory, weights, erase, add):
        return write_slots(memory, weights, erase=erase, add=add)

    assert torch.autograd.gradcheck(write, inputs)
