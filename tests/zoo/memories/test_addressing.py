"""Heads are placed as the paper's equations say, and stay finite where plain code does not."""

import pytest
import torch

from saccade.zoo.memories.addressing import (
    content_weights,
    cosine_similarity,
    locate,
    sharpen_weights,
    shift_weights,
)

BATCH, HEADS, SLOTS, WIDTH = 2, 3, 7, 5


@pytest.fixture
def memory():
    return torch.randn(BATCH, SLOTS, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def keys():
    return torch.randn(BATCH, HEADS, WIDTH, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(3)
    return torch.rand(BATCH, HEADS, SLOTS, generator=generator).softmax(-1)


def test_similarity_is_torchs_cosine_of_each_key_with_each_slot(keys, memory):
    expected = torch.nn.functional.cosine_similarity(keys[:, :, None], memory[:, None], dim=-1)
    torch.testing.assert_close(cosine_similarity(keys, memory), expected, atol=1e-5, rtol=1e-4)


def test_content_weights_are_a_softmax_that_strength_sharpens(keys, memory):
    strength = torch.full((BATCH, HEADS), 3.0)
    found = content_weights(keys, memory, strength=strength)
    for row in range(BATCH):
        for head in range(HEADS):
            near = [
                torch.nn.functional.cosine_similarity(keys[row, head], slot, dim=0)
                for slot in memory[row]
            ]
            expected = (3 * torch.stack(near)).softmax(0)
            torch.testing.assert_close(found[row, head], expected, atol=1e-5, rtol=1e-4)
    sharper = content_weights(keys, memory, strength=2 * strength)
    assert (sharper.amax(-1) > found.amax(-1)).all()


def test_an_empty_memory_is_alike_everywhere_and_its_gradient_is_finite(keys):
    memory = torch.zeros(BATCH, SLOTS, WIDTH, requires_grad=True)
    found = content_weights(keys, memory, strength=torch.ones(BATCH, HEADS))
    torch.testing.assert_close(found, torch.full_like(found, 1 / SLOTS))
    (gradient,) = torch.autograd.grad(found[:, :, 0].sum(), memory)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("reach", [1, 2])
def test_a_shift_is_the_papers_circular_convolution(weights, reach):
    moves = 2 * reach + 1
    shift = torch.rand(BATCH, HEADS, moves, generator=torch.Generator().manual_seed(4)).softmax(-1)
    found = shift_weights(weights, shift)
    for row in range(BATCH):
        for head in range(HEADS):
            for slot in range(SLOTS):
                expected = sum(
                    weights[row, head, (slot - by) % SLOTS] * shift[row, head, by + reach]
                    for by in range(-reach, reach + 1)
                )
                torch.testing.assert_close(found[row, head, slot], expected)
    torch.testing.assert_close(found.sum(-1), torch.ones(BATCH, HEADS))


def test_sharpening_is_a_power_and_one_changes_nothing(weights):
    torch.testing.assert_close(sharpen_weights(weights, torch.ones(BATCH, HEADS)), weights)
    power = 1 + torch.rand(BATCH, HEADS)
    expected = weights ** power[:, :, None]
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(sharpen_weights(weights, power), expected)


def test_sharpening_a_flat_tape_beyond_float32_is_still_flat():
    flat = torch.full((1, 1, 128), 1 / 128, requires_grad=True)
    sharp = sharpen_weights(flat, torch.tensor([[40.0]]))  # (1/128)^40 is 1e-85
    torch.testing.assert_close(sharp, flat)
    (gradient,) = torch.autograd.grad(sharp[0, 0, 3], flat)
    assert gradient.isfinite().all()


def test_a_weight_of_exactly_zero_has_a_gradient():
    weights = torch.tensor([[[1.0, 0.0, 0.0]]], requires_grad=True)
    sharp = sharpen_weights(weights, torch.tensor([[1.5]]))
    (gradient,) = torch.autograd.grad(sharp[0, 0, 1], weights)
    assert gradient.isfinite().all()


def test_a_shut_gate_moves_the_weights_before_and_an_open_one_takes_the_content(weights):
    still = torch.tensor([0.0, 1.0, 0.0]).expand(BATCH, HEADS, 3)
    content, previous = weights, weights.flip(-1)
    ones = torch.ones(BATCH, HEADS)
    sharp = {"shift": still, "sharpness": ones}
    torch.testing.assert_close(locate(content, previous, gate=0 * ones, **sharp), previous)
    torch.testing.assert_close(locate(content, previous, gate=ones, **sharp), content)
    half = locate(content, previous, gate=0.5 * ones, **sharp)
    torch.testing.assert_close(half, (content + previous) / 2)
