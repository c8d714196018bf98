"""Places and pixels: one convention, that of torch with corners not aligned."""

import re

import pytest
import torch
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.sensors.coordinates import check_images, pixel_centres, to_pixels, to_places


def test_pixel_centres_are_those_of_torchs_grid():
    grid = functional.affine_grid(torch.eye(2, 3)[None], [1, 1, 5, 7], align_corners=False)[0]
    torch.testing.assert_close(grid[0, :, 0], pixel_centres(7))
    torch.testing.assert_close(grid[:, 0, 1], pixel_centres(5))


def test_the_edges_are_half_a_pixel_beyond_the_outermost_centres():
    torch.testing.assert_close(to_places(torch.tensor([-0.5, 6.5]), 7), torch.tensor([-1.0, 1.0]))


def test_pixels_and_places_are_inverse():
    place = torch.linspace(-1.5, 1.5, 11)
    torch.testing.assert_close(to_places(to_pixels(place, 13), 13), place)
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
