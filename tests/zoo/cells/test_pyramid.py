"""The pyramid: which steps are read together, and that padding is not heard."""

import torch

from saccade.zoo.cells.stacks import Pyramid, pair_steps


def test_pairs_are_neighbours_and_padding_is_zero():
    steps = torch.arange(2 * 5 * 3.0).view(2, 5, 3) + 1
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    pairs, paired_mask = pair_steps(steps, mask)
    assert pairs.shape == (2, 3, 6) and paired_mask.sum(1).tolist() == [3, 2]
    for row, n in ((0, 5), (1, 3)):
        for at in range(3):
            for half in range(2):
                step = 2 * at + half
                right = steps[row, step] if step < n else torch.zeros(3)
                torch.testing.assert_close(pairs[row, at, 3 * half : 3 * half + 3], right)


def test_each_layer_halves_the_steps_and_padding_changes_nothing():
    torch.manual_seed(0)
    pyramid = Pyramid(3, 5, n_layers=2).eval()
    steps = torch.randn(2, 11, 3)
    mask = torch.arange(11) < torch.tensor([[11], [6]])
    climbed = pyramid(steps, mask)
    assert climbed.outputs.shape == (2, 3, 10) and climbed.mask.sum(1).tolist() == [3, 2]
    alone = pyramid(steps[1:, :6], mask[1:, :6])
    torch.testing.assert_close(climbed.outputs[1, :2], alone.outputs[0])
