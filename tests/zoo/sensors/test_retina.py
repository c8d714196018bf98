"""The retina against loops over pixels, grid_sample and the laws of areas; coordinates."""

import re

import pytest
import torch
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.sensors.retina import (
    Retina,
    check_images,
    pixel_centres,
    sum_images,
    to_locations,
    to_pixels,
)

BATCH, GLIMPSES, HEIGHT, WIDTH = 2, 3, 19, 23
# float32 sums of a whole image are subtracted from each other.
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture
def images():
    torch.manual_seed(0)
    return torch.rand(BATCH, HEIGHT, WIDTH)


@pytest.fixture
def centres():
    torch.manual_seed(1)
    return 2.4 * torch.rand(BATCH, GLIMPSES, 2) - 1.2  # some beyond the edge


def area_mean(image, *, left, top, side):
    """The mean over a square of real corners: each pixel by the share of it that is inside."""
    total = 0.0
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            down = min(row + 1, top + side) - max(row, top)
            right = min(column + 1, left + side) - max(column, left)
            if down > 0 and right > 0:
                total += image[row, column].item() * down * right
    return total / side**2


def by_loops(images, centres, *, size, n_scales, growth=2.0):
    n, glimpses = centres.shape[:2]
    patches = torch.zeros(n, glimpses, n_scales, size, size)
    for at in torch.cartesian_prod(*map(torch.arange, patches.shape)).tolist():
        b, g, scale, row, column = at
        x, y = centres[b, g].tolist()
        pixel = growth**scale
        left = (x + 1) * WIDTH / 2 + (column - size / 2) * pixel
        top = (y + 1) * HEIGHT / 2 + (row - size / 2) * pixel
        patches[tuple(at)] = area_mean(images[b], left=left, top=top, side=pixel)
    return patches


@pytest.mark.parametrize(("size", "n_scales", "growth"), [(3, 3, 2.0), (4, 2, 2.0), (3, 2, 1.5)])
def test_a_patch_is_the_mean_over_areas_by_loops_over_pixels(
    images, centres, size, n_scales, growth
):
    found = Retina(size=size, n_scales=n_scales, growth=growth).look(images, centres)
    expected = by_loops(images, centres, size=size, n_scales=n_scales, growth=growth)
    torch.testing.assert_close(found, expected, **CLOSE)


def test_the_finest_scale_is_torchs_bilinear_sampling(images, centres):
    size = 5
    patches = Retina(size=size).look(images, centres)
    along = torch.arange(size) - (size - 1) / 2
    x = centres[:, :, 0, None] + along * 2 / WIDTH  # [batch, glimpse, size]
    y = centres[:, :, 1, None] + along * 2 / HEIGHT
    grid = torch.stack(
        [x[:, :, None].expand(-1, -1, size, -1), y[:, :, :, None].expand(-1, -1, -1, size)], dim=-1
    )
    expected = functional.grid_sample(
        images[:, None], grid.flatten(1, 2), padding_mode="zeros", align_corners=False
    )
    torch.testing.assert_close(
        patches[:, :, 0], expected.view(BATCH, GLIMPSES, size, size), **CLOSE
    )


def test_on_whole_pixels_it_crops_and_averages(images):
    # A patch of 4 with its centre on the corner between pixels 9 and 10 of a row, 8 and 9 below.
    centre = torch.tensor([2 * 10 / WIDTH - 1, 2 * 9 / HEIGHT - 1]).expand(BATCH, 1, 2)
    fine, coarse = Retina(size=4, n_scales=2).look(images, centre)[:, 0].unbind(1)
    torch.testing.assert_close(fine, images[:, 7:11, 8:12], **CLOSE)
    torch.testing.assert_close(
        coarse, functional.avg_pool2d(images[:, None, 5:13, 6:14], 2)[:, 0], **CLOSE
    )


def test_outside_of_the_image_there_is_nothing(images):
    far = torch.full((BATCH, 1, 2), 3.0)
    assert Retina(size=5, n_scales=2).look(images, far).abs().max() < 1e-4
    seen = Retina(size=HEIGHT, n_scales=3).look(images, torch.zeros(BATCH, 1, 2))
    whole = seen[:, 0, 2].sum((1, 2)) * 4.0**2  # the coarsest patch has the whole image in it
    torch.testing.assert_close(whole, images.sum((1, 2)), atol=0.01, rtol=1e-4)


def test_many_glimpses_at_once_are_those_one_by_one(images, centres):
    retina = Retina(size=4, n_scales=3)
    summed = sum_images(images)
    each = [retina.look_again(summed, centres[:, [number]]) for number in range(GLIMPSES)]
    torch.testing.assert_close(retina.look(images, centres), torch.cat(each, dim=1))


def test_it_has_the_gradient_of_the_centre_by_finite_differences(images):
    retina = Retina(size=3, n_scales=2)
    summed = sum_images(images.double())
    centres = torch.tensor([[[0.101, -0.203]], [[-0.307, 0.405]]], dtype=torch.double)
    assert torch.autograd.gradcheck(
        lambda at: retina.look_again(summed, at), centres.requires_grad_(), eps=1e-6
    )


def test_windows_reach_as_far_as_patches_do():
    half = Retina(size=6, n_scales=3).half_sizes(height=HEIGHT, width=WIDTH)
    expected = [[6 * 2**scale / WIDTH, 6 * 2**scale / HEIGHT] for scale in range(3)]
    torch.testing.assert_close(half, torch.tensor(expected))


def test_a_glimpse_larger_than_the_image_is_refused(images):
    with pytest.raises(UsageError, match="20 x 20 pixels is larger than the image of 19 x 23"):
        Retina(size=20).look(images, torch.zeros(BATCH, 1, 2))


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"size": 3, "n_scales": 0}, {"size": 3, "growth": 1}]
)
def test_a_retina_without_extent_is_refused(wrong):
    with pytest.raises(UsageError, match="a retina needs size and n_scales of 1 or more"):
        Retina(**{"growth": 2.0, **{k: float(v) if k == "growth" else v for k, v in wrong.items()}})


def test_pixel_centres_are_those_of_torchs_grid():
    grid = functional.affine_grid(torch.eye(2, 3)[None], [1, 1, 5, 7], align_corners=False)[0]
    torch.testing.assert_close(grid[0, :, 0], pixel_centres(7))
    torch.testing.assert_close(grid[:, 0, 1], pixel_centres(5))


def test_the_edges_are_half_a_pixel_beyond_the_outermost_centres():
    torch.testing.assert_close(
        to_locations(torch.tensor([-0.5, 6.5]), 7), torch.tensor([-1.0, 1.0])
    )


def test_pixels_and_locations_are_inverse():
    location = torch.linspace(-1.5, 1.5, 11)
    torch.testing.assert_close(to_locations(to_pixels(location, 13), 13), location)
    torch.testing.assert_close(to_pixels(pixel_centres(13), 13), torch.arange(13.0))


@pytest.mark.parametrize(
    ("shape", "message", "hint"),
    [
        ((2, 3, 28, 28), r"got \(2, 3, 28, 28\), which has colours", "average the colours"),
        ((28, 28), r"expected grey images \[batch, height, width\], got \(28, 28\)", "image.None."),
        ((2, 28, 27), "expected images of 28 x 28 pixels, got 28 x 27", "crop or pad"),
    ],
)
def test_what_is_no_batch_of_grey_images_of_that_size_is_refused(shape, message, hint):
    with pytest.raises(UsageError, match=message) as refused:
        check_images(torch.zeros(shape), size=(28, 28))
    assert re.search(hint, refused.value.hint)


def test_any_size_will_do_if_none_is_asked_for():
    check_images(torch.zeros(2, 5, 7))
