"""The spatial transformer against loops over pixels, and against laws."""

import math

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.sensors.spatial_transformer import (
    LocalisationNet,
    sampling_grid,
    warp,
    window_theta,
)

BATCH, CHANNELS, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH = 2, 3, 7, 11, 5, 2


def warp_by_loops(images, theta):
    """Each place of the window: where it lies, and the four pixels around that."""
    result = torch.zeros(len(images), images.shape[1], OUT_HEIGHT, OUT_WIDTH, dtype=images.dtype)
    for b in range(len(images)):
        for j in range(OUT_HEIGHT):
            for i in range(OUT_WIDTH):
                own = torch.tensor(
                    [(2 * i + 1) / OUT_WIDTH - 1, (2 * j + 1) / OUT_HEIGHT - 1, 1.0],
                    dtype=images.dtype,
                )
                x, y = (theta[b] @ own).tolist()
                column, row = ((x + 1) * WIDTH - 1) / 2, ((y + 1) * HEIGHT - 1) / 2
                for v in (math.floor(row), math.floor(row) + 1):
                    for u in (math.floor(column), math.floor(column) + 1):
                        if 0 <= v < HEIGHT and 0 <= u < WIDTH:
                            weight = (1 - abs(row - v)) * (1 - abs(column - u))
                            result[b, :, j, i] += weight * images[b, :, v, u]
    return result


def thetas():
    return torch.eye(2, 3).expand(BATCH, 2, 3) + 0.4 * torch.randn(BATCH, 2, 3)


def test_agrees_with_loops_over_pixels():
    images, theta = torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), thetas()
    found = warp(images, theta, height=OUT_HEIGHT, width=OUT_WIDTH)
    torch.testing.assert_close(found, warp_by_loops(images, theta), rtol=1e-4, atol=1e-5)


def test_the_identity_shows_the_whole_image():
    images = torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)
    theta = window_theta(torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(BATCH, 4))
    torch.testing.assert_close(warp(images, theta, height=HEIGHT, width=WIDTH), images)


def test_a_window_of_whole_pixels_is_a_crop():
    """Rows 1 to 5 and columns 4 to 5: their middle is at 7/2 and 5 pixels from the outer edges."""
    images = torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)
    centre = (2 * 5 / WIDTH - 1, 2 * 3.5 / HEIGHT - 1)
    window = torch.tensor([*centre, OUT_WIDTH / WIDTH, OUT_HEIGHT / HEIGHT]).expand(BATCH, 4)
    found = warp(images, window_theta(window), height=OUT_HEIGHT, width=OUT_WIDTH)
    torch.testing.assert_close(found, images[:, :, 1:6, 4:6], rtol=1e-4, atol=1e-5)


def test_outside_the_image_there_is_nothing():
    images = torch.ones(BATCH, 1, HEIGHT, WIDTH)
    theta = window_theta(torch.tensor([3.0, 3.0, 0.5, 0.5]).expand(BATCH, 4))
    assert (warp(images, theta, height=OUT_HEIGHT, width=OUT_WIDTH) == 0).all()


def test_a_quarter_turn_turns_the_picture():
    images = torch.randn(1, 1, HEIGHT, HEIGHT)
    theta = torch.tensor([[[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]])
    turned = warp(images, theta, height=HEIGHT, width=HEIGHT)
    torch.testing.assert_close(turned, images.rot90(-1, (2, 3)), rtol=1e-4, atol=1e-5)


def test_the_grid_is_the_matrix_times_places():
    theta = thetas()
    grid = sampling_grid(theta, height=OUT_HEIGHT, width=OUT_WIDTH)
    x, y = -1 + 1 / OUT_WIDTH, -1 + 3 / OUT_HEIGHT  # the first column, the second row
    expected = theta @ torch.tensor([x, y, 1.0])
    torch.testing.assert_close(grid[:, 1, 0], expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_finite_differences():
    images = torch.randn(BATCH, 1, HEIGHT, WIDTH, dtype=torch.float64)
    theta = thetas().double().requires_grad_()

    def shown(matrix):
        return warp(images, matrix, height=OUT_HEIGHT, width=OUT_WIDTH)

    assert torch.autograd.gradcheck(shown, theta)


def test_localisation_begins_with_the_identity_and_can_learn():
    net = LocalisationNet((1, 2, 3), height=13, width=17, d_hidden=5, kernel=3)
    images = torch.rand(BATCH, 1, 13, 17)
    theta = net(images)
    torch.testing.assert_close(theta, torch.eye(2, 3).expand(BATCH, 2, 3))
    warp(images, theta, height=5, width=5).square().sum().backward()
    assert net.theta.weight.grad is not None and net.theta.weight.grad.abs().sum() > 0


def test_too_many_poolings_are_refused():
    with pytest.raises(UsageError, match="3 poolings reduce the image to nothing"):
        LocalisationNet((1, 2, 3, 5), height=7, width=7, d_hidden=5)
