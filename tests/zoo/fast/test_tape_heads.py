"""Heads are placed and write in one go as in stages, and the gradients by hand are right."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.memories.addressing import (
    content_weights,
    cut,
    init_moving_heads,
    locate,
    place_heads,
    write_slots,
)

BATCH, HEADS, SLOTS, WIDTH = 2, 3, 7, 5


def given(reach, *, dtype=torch.float32):
    generator = torch.Generator().manual_seed(reach)
    emitted = torch.randn(BATCH, HEADS, WIDTH + 4 + 2 * reach, generator=generator, dtype=dtype)
    memory = torch.randn(BATCH, SLOTS, WIDTH, generator=generator, dtype=dtype)
    memory[0, 3] = 0.0  # never written
    memory[1, 2] *= 1e-4  # too short to be divided by
    previous = torch.rand(BATCH, HEADS, SLOTS, generator=generator, dtype=dtype).softmax(-1)
    return [each.requires_grad_() for each in (2 * emitted, memory, previous)]


def in_stages(emitted, memory, previous):
    key, positive, gate, shift = cut(emitted, WIDTH)
    strength, sharpness = functional.softplus(positive).unbind(2)
    return locate(
        content_weights(key.tanh(), memory, strength=strength),
        previous,
        gate=gate[..., 0].sigmoid(),
        shift=shift.softmax(-1),
        sharpness=1 + sharpness,
    )


@pytest.mark.parametrize("reach", [1, 2])
def test_weights_and_gradients_agree_with_the_stages_one_by_one(reach):
    inputs = given(reach, dtype=torch.float64)
    weights, expected = place_heads(*inputs), in_stages(*inputs)
    torch.testing.assert_close(weights, expected)
    factor = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9)).double()
    found = torch.autograd.grad((weights * factor).sum(), inputs)
    wanted = torch.autograd.grad((expected * factor).sum(), inputs)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("reach", [1, 2])
def test_both_forms_of_placing_agree(reach, assert_forms_agree):
    assert_forms_agree(place_heads, given(reach, dtype=torch.float64))


def test_both_forms_of_writing_agree(assert_forms_agree):
    chance = torch.Generator().manual_seed(4)
    sizes = ((BATCH, SLOTS, WIDTH), (BATCH, 1, SLOTS), (BATCH, 1, WIDTH), (BATCH, 1, WIDTH))
    leaves = [torch.randn(size, generator=chance).double().requires_grad_() for size in sizes]
    assert_forms_agree(
        lambda memory, weights, erase, add: write_slots(memory, weights, erase=erase, add=add),
        leaves,
    )


def test_without_gradients_the_weights_are_the_same():
    inputs = given(1)
    with torch.no_grad():
        quick = place_heads(*inputs)
    torch.testing.assert_close(quick, place_heads(*inputs))
    torch.testing.assert_close(quick.sum(-1), torch.ones(BATCH, HEADS))


def test_the_gradient_agrees_with_differences():
    emitted, memory, previous = given(1, dtype=torch.float64)
    memory = torch.randn(BATCH, SLOTS, WIDTH, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(place_heads, (emitted, memory, previous))


@pytest.mark.parametrize("reach", [1, 2])
def test_a_head_that_is_told_to_move_on_walks_along_an_empty_tape(reach):
    heads = torch.zeros(1, WIDTH + 4 + 2 * reach)
    init_moving_heads(heads, WIDTH)
    memory, weights = torch.zeros(1, SLOTS, WIDTH), torch.eye(SLOTS)[None, :1]
    for step in range(1, SLOTS):
        weights = place_heads(heads[None], memory, weights)
        assert weights[0, 0].argmax() == step
        assert weights[0, 0, step] > 0.8


def test_of_two_heads_the_one_that_reads_looks_where_its_key_is():
    heads = torch.zeros(2, WIDTH + 6)
    init_moving_heads(heads, WIDTH, n_reads=1)
    key = torch.eye(WIDTH)[2]
    heads[:, :WIDTH], heads[:, WIDTH] = 9 * key, 9  # strongly
    memory = torch.zeros(1, SLOTS, WIDTH)
    memory[0, 3] = key
    at_first = torch.eye(SLOTS)[[0, 0]][None]
    reads, writes = place_heads(heads[None], memory, at_first)[0]
    torch.testing.assert_close(reads[4], reads[1], rtol=1e-2, atol=0)  # half, half
    assert writes[1] > 0.9
