"""Differentiable RAM: it learns where to look from its answers alone."""

import pytest
import torch
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.models.diff_ram import DifferentiableRam, clip_by_median
from saccade.zoo.sensors.gaussian_bank import gaussian_filters, gaussian_read

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


@pytest.mark.parametrize("most", [0.0, 0.5, 3.0])
def test_restraint_shortens_the_gradients_of_rows_that_are_too_long_and_no_other(most):
    x = torch.randn(7, 5, requires_grad=True)
    pull = torch.randn(7, 5) * torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 30.0, 0.0])[:, None]
    (clip_by_median(x, most) * pull + x * 2).sum().backward()
    lengths = pull.norm(dim=1)
    limit = most * lengths.sort().values[3] if most else lengths.max()
    for row in range(7):
        part = min(1.0, (limit / lengths[row]).item()) if lengths[row] else 1.0
        torch.testing.assert_close(x.grad[row], part * pull[row] + 2)


def test_restraint_changes_what_is_learnt_and_nothing_that_is_seen():
    images, found, taught = torch.rand(5, HEIGHT, WIDTH), [], []
    for restraint in (0.0, 1e9, 0.1):
        ram = model(restraint=restraint)
        torch.nn.init.normal_(ram.place.parameters_of.weight)
        logits = ram.look(images).logits
        found.append(logits)
        taught.append(torch.autograd.grad(logits.square().sum(), ram.glimpse.weight)[0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    torch.testing.assert_close(taught[0], taught[1])
    assert not torch.allclose(taught[0], taught[2])


def test_bad_images_and_glimpses_are_refused():
    with pytest.raises(UsageError, match="11 x 13"):
        model()(torch.zeros(2, 13, 11))
    with pytest.raises(UsageError, match="from 2 to 13 filters a side"):
        model(patch=14)(torch.zeros(2, HEIGHT, WIDTH))
