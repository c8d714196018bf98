"""The Gaussian filter bank against loops over filters and pixels, and against laws."""

import math

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.sensors.gaussian_bank import (
    GaussianGrid,
    GridPlace,
    gaussian_filters,
    gaussian_read,
    gaussian_write,
    grid_from_parameters,
)

BATCH, HEIGHT, WIDTH, SIZE, CHANNELS = 2, 11, 7, 3, 2


def grid(*, batch=BATCH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return GaussianGrid(
        centre=torch.rand(batch, 2, generator=generator) - 0.5,
        stride=1 + torch.rand(batch, generator=generator),
        variance=0.5 + torch.rand(batch, generator=generator),
        intensity=0.5 + torch.rand(batch, generator=generator),
    )


def filter_by_loops(centre, stride, variance, *, n_pixels):
    """One axis, from the paper's equations with pixels counted from 1."""
    middle = (centre + 1) * n_pixels / 2 + 0.5  # the outer edges of pixels 1 and n are -1 and 1
    filters = []
    for i in range(1, SIZE + 1):
        mean = middle + (i - SIZE / 2 - 0.5) * stride
        values = [math.exp(-((a - mean) ** 2) / (2 * variance)) for a in range(1, n_pixels + 1)]
        filters.append([value / sum(values) for value in values])
    return filters


@pytest.mark.parametrize(("height", "width"), [(HEIGHT, WIDTH), (WIDTH, HEIGHT), (HEIGHT, HEIGHT)])
def test_filters_are_those_of_the_paper(height, width):
    some = grid()
    bank = gaussian_filters(some, height=height, width=width, size=SIZE)
    for row in range(BATCH):
        stride, variance = some.stride[row].item(), some.variance[row].item()
        x, y = some.centre[row].tolist()
        columns = filter_by_loops(x, stride, variance, n_pixels=width)
        rows = filter_by_loops(y, stride, variance, n_pixels=height)
        torch.testing.assert_close(bank.columns[row], torch.tensor(columns))
        torch.testing.assert_close(bank.rows[row], torch.tensor(rows))


def test_reading_is_a_weighted_sum_over_all_pixels():
    bank = gaussian_filters(grid(), height=HEIGHT, width=WIDTH, size=SIZE)
    images = torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)
    expected = torch.zeros(BATCH, CHANNELS, SIZE, SIZE)
    for b in range(BATCH):
        for j in range(SIZE):
            for i in range(SIZE):
                weights = bank.rows[b, j][:, None] * bank.columns[b, i][None]
                expected[b, :, j, i] = (weights * images[b]).sum((1, 2)) * bank.intensity[b]
    torch.testing.assert_close(gaussian_read(images, bank), expected)


def test_writing_is_the_transpose_of_reading():
    bank = gaussian_filters(grid(), height=HEIGHT, width=WIDTH, size=SIZE)
    image, patch = torch.randn(BATCH, HEIGHT, WIDTH), torch.randn(BATCH, SIZE, SIZE)
    seen = gaussian_read(image[:, None], bank)[:, 0] / bank.intensity[:, None, None]
    laid = gaussian_write(patch, bank) * bank.intensity[:, None, None]
    torch.testing.assert_close((seen * patch).sum((1, 2)), (image * laid).sum((1, 2)))


def test_narrow_filters_one_pixel_apart_copy_a_window():
    """Filters on pixels 2, 3, 4 of 7 columns and 4, 5, 6 of 11 rows: the middle of the image."""
    exact = GaussianGrid(torch.zeros(1, 2), torch.ones(1), torch.full((1,), 1e-3), torch.ones(1))
    image = torch.randn(1, HEIGHT, WIDTH)
    bank = gaussian_filters(exact, height=HEIGHT, width=WIDTH, size=SIZE)
    seen = gaussian_read(image[:, None], bank)[:, 0]
    torch.testing.assert_close(seen, image[:, 4:7, 2:5])
    back = gaussian_write(seen, bank)
    torch.testing.assert_close(back[:, 4:7, 2:5], seen)
    assert back.count_nonzero() == SIZE * SIZE


def test_filters_lie_where_they_lie_however_a_training_rounds():
    """On 101 pixels bfloat16 would move a narrow filter by half of one."""
    narrow = GaussianGrid(
        torch.full((BATCH, 2), 0.9), torch.ones(BATCH), torch.full((BATCH,), 0.1), torch.ones(BATCH)
    )
    place = GridPlace(17, height=101, width=101, size=SIZE)
    torch.nn.init.normal_(place.parameters_of.weight)
    hidden = torch.randn(BATCH, 17)
    exact, chosen = place.bank(narrow), place(hidden)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(place.bank(narrow), exact, atol=0, rtol=0)
        torch.testing.assert_close(place(hidden), chosen, atol=0, rtol=0)


def test_zero_parameters_cover_the_whole_image():
    found = grid_from_parameters(torch.zeros(2, 5), height=HEIGHT, width=HEIGHT, size=SIZE)
    bank = gaussian_filters(found, height=HEIGHT, width=HEIGHT, size=SIZE)
    assert bank.rows[0].argmax(-1).tolist() == [0, HEIGHT // 2, HEIGHT - 1]
    assert (found.variance == 1).all() and (found.intensity == 1).all()


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_a_place_begins_on_the_part_of_the_image_that_it_is_told(part):
    """11 pixels: the middles of the outer filters are 10, or 5, pixels apart."""
    place = GridPlace(13, height=HEIGHT, width=HEIGHT, size=SIZE, first_view=part)
    found = place(torch.randn(BATCH, 13))
    torch.testing.assert_close((SIZE - 1) * found.stride, torch.full((BATCH,), 10 * part))
    torch.testing.assert_close(found.variance.sqrt(), found.stride / 2)
    assert (found.centre == 0).all() and (found.intensity == 1).all()


@pytest.mark.parametrize("value", [-1e4, -50.0, 50.0, 1e4])
def test_no_parameters_make_a_number_that_is_none(value):
    parameters = torch.full((BATCH, 5), value, requires_grad=True)
    found = grid_from_parameters(parameters, height=HEIGHT, width=WIDTH, size=SIZE)
    bank = gaussian_filters(found, height=HEIGHT, width=WIDTH, size=SIZE)
    torch.testing.assert_close(bank.rows.sum(-1), torch.ones(BATCH, SIZE))
    (gradient,) = torch.autograd.grad(
        gaussian_write(torch.ones(BATCH, SIZE, SIZE), bank).square().sum(), parameters
    )
    assert gradient.isfinite().all()


def test_gradients_of_all_five_numbers_are_those_of_finite_differences():
    images = torch.randn(BATCH, 1, HEIGHT, WIDTH, dtype=torch.float64)
    parameters = 0.3 * torch.randn(BATCH, 5, dtype=torch.float64)

    def read(numbers):
        found = grid_from_parameters(numbers, height=HEIGHT, width=WIDTH, size=SIZE)
        return gaussian_read(images, gaussian_filters(found, height=HEIGHT, width=WIDTH, size=SIZE))

    assert torch.autograd.gradcheck(read, parameters.requires_grad_())


@pytest.mark.parametrize("size", [1, 12])
def test_a_grid_that_does_not_fit_is_refused(size):
    with pytest.raises(UsageError, match=f"from 2 to 11 filters a side .* 7 x 11, got {size}"):
        grid_from_parameters(torch.zeros(1, 5), height=HEIGHT, width=WIDTH, size=size)
    with pytest.raises(UsageError, match=f"from 2 to 11 filters a side .* 7 x 11, got {size}"):
        GridPlace(13, height=HEIGHT, width=WIDTH, size=size)


@pytest.mark.parametrize("part", [0.0, 1.5])
def test_a_first_view_that_is_no_part_is_refused(part):
    with pytest.raises(UsageError, match=f"above 0 and at most 1, got {part:g}"):
        GridPlace(13, height=HEIGHT, width=WIDTH, size=SIZE, first_view=part)
