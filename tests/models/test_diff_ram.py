"""Differentiable RAM: it learns where to look from its answers alone."""

import pytest
import torch
from torch.nn import functional

from saccade.errors import UsageError
from saccade.models.diff_ram import DifferentiableRam
from saccade.sensors.gaussian_bank import gaussian_filters, gaussian_read

BATCH, HEIGHT, WIDTH, CLASSES, GLIMPSES, PATCH = 2, 11, 13, 5, 3, 4


def model(**changes):
    torch.manual_seed(0)
    sizes = {"n_classes": CLASSES, "n_glimpses": GLIMPSES, "patch": PATCH, "d_hidden": 17}
    return DifferentiableRam(size=(HEIGHT, WIDTH), **{**sizes, **changes})


def test_a_glimpse_is_what_its_grid_shows():
    images = torch.rand(BATCH, HEIGHT, WIDTH)
    looked = model().look(images)
    for grid, patch in zip(looked.grids, looked.patches, strict=True):
        bank = gaussian_filters(grid, height=HEIGHT, width=WIDTH, size=PATCH)
        torch.testing.assert_close(patch, gaussian_read(images[:, None], bank)[:, 0])


def test_the_first_look_is_at_the_whole_image_and_no_row_knows_of_another():
    ram, images = model(), torch.rand(BATCH, HEIGHT, WIDTH)
    looked = ram.look(images)
    first = looked.grids[0]
    assert (first.centre == 0).all()
    torch.testing.assert_close(first.stride, torch.full((BATCH,), (WIDTH - 1) / (PATCH - 1)))
    alone = torch.cat([ram(images[row, None]) for row in range(BATCH)])
    torch.testing.assert_close(ram(images), alone)
    torch.testing.assert_close(looked.logits[:, -1], alone)


def test_the_answer_alone_moves_the_glimpses():
    """A blot in one of four corners, the class is which."""
    ram = model(n_classes=4)
    optimiser = torch.optim.Adam(ram.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(100):
        labels = torch.randint(4, (32,), generator=generator)
        images = torch.zeros(32, HEIGHT, WIDTH)
        for image, label in zip(images, labels.tolist(), strict=True):
            top, left = 6 * (label // 2), 8 * (label % 2)
            image[top : top + 4, left : left + 4] = 1
        loss = functional.cross_entropy(ram(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < losses[0]
    assert ram.place.parameters_of.weight.abs().sum() > 0


def test_bad_images_and_glimpses_are_refused():
    with pytest.raises(UsageError, match="11 x 13"):
        model()(torch.zeros(2, 13, 11))
    with pytest.raises(UsageError, match="from 2 to 13 filters a side"):
        model(patch=14)(torch.zeros(2, HEIGHT, WIDTH))
