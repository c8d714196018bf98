"""Scenes: what is where, drawn anew and yet the same again, and what cannot be laid out."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.mnist import SIDE, Digits, Scene, Scenes, make_scenes

N = 40


@pytest.fixture(scope="module")
def digits():
    """Digits whose every pixel tells whose it is; with an empty margin as MNIST's have."""
    torch.manual_seed(0)
    images = torch.zeros(N, SIDE, SIDE, dtype=torch.uint8)
    images[:, 4:-4, 4:-4] = torch.randint(1, 256, (N, 20, 20), dtype=torch.uint8)
    return Digits(images, torch.arange(N) % 10)


def scenes(digits, seed=3, n=7, **about):
    scene = Scene(**about)
    chosen = torch.arange(n * scene.n_digits).view(n, scene.n_digits)
    return chosen, make_scenes(digits, chosen, scene=scene, generator=generator_of(seed, 0))


def corner(window, size):
    """Row and column of the upper left pixel of a window."""
    x, y, half_width, half_height = window.tolist()
    return round((y - half_height + 1) * size / 2), round((x - half_width + 1) * size / 2)


def test_a_scene_of_28_is_the_digit_itself(digits):
    chosen, made = scenes(digits)
    torch.testing.assert_close(made.images, digits.images[chosen[:, 0]] / 255)
    assert torch.equal(made.labels, digits.labels[chosen[:, 0]])
    torch.testing.assert_close(made.windows, torch.tensor([0.0, 0, 1, 1]).expand(7, 1, 4))


def test_a_translated_digit_is_whole_inside_its_window_and_nothing_is_outside(digits):
    chosen, made = scenes(digits, size=60)
    places = set()
    for image, window, digit in zip(made.images, made.windows, chosen[:, 0], strict=True):
        row, column = corner(window[0], 60)
        places.add((row, column))
        torch.testing.assert_close(
            image[row : row + SIDE, column : column + SIDE], digits.images[digit] / 255
        )
        assert image.sum() == pytest.approx((digits.images[digit] / 255).sum().item(), rel=1e-5)
    assert len(places) > 3


def test_clutter_is_pieces_of_digits_and_the_darker_shows(digits):
    _, plain = scenes(digits, size=60)
    _, made = scenes(digits, size=60, n_clutter=4)
    assert torch.equal(plain.windows, made.windows)  # the digit is drawn before the clutter
    assert (made.images >= plain.images).all()
    added = (made.images > plain.images).flatten(1).sum(1)
    assert (added <= 4 * 64).all() and (added > 0).sum() >= 6
    values = set((made.images[made.images > plain.images] * 255).round().int().tolist())
    assert values <= set(digits.images.flatten().tolist())


def test_two_digits_never_overlap_and_are_told_from_left_to_right(digits):
    chosen, made = scenes(digits, size=100, n_digits=2, n=20)
    for row in range(20):
        corners = [corner(window, 100) for window in made.windows[row]]
        assert corners[0][1] <= corners[1][1]
        assert max(abs(corners[0][axis] - corners[1][axis]) for axis in (0, 1)) >= SIDE
        shown = [
            next(d for d in chosen[row].tolist() if digits.labels[d] == label)
            for label in made.labels[row].tolist()
        ]
        for (top, left), digit in zip(corners, shown, strict=True):
            torch.testing.assert_close(
                made.images[row, top : top + SIDE, left : left + SIDE], digits.images[digit] / 255
            )


def test_a_sum_is_that_of_the_digits(digits):
    _, apart = scenes(digits, size=100, n_digits=2)
    _, added = scenes(digits, size=100, n_digits=2, asks="sum")
    assert torch.equal(added.labels, apart.labels.sum(1)) and torch.equal(
        added.images, apart.images
    )


def test_a_shifted_digit_keeps_its_ink_and_its_window_follows(digits):
    chosen, made = scenes(digits, max_shift=2, n=30)
    torch.testing.assert_close(
        made.images.sum((1, 2)), (digits.images[chosen[:, 0]] / 255).sum((1, 2))
    )
    moved = (made.windows[:, 0, :2] * SIDE / 2).round()
    assert moved.abs().max() == 2 and len(moved.unique(dim=0)) > 5
    for image, digit, (right, down) in zip(made.images, chosen[:, 0], moved.int(), strict=True):
        rolled = (digits.images[digit] / 255).roll((int(down), int(right)), (0, 1))
        torch.testing.assert_close(image, rolled)


def test_an_epoch_shows_every_digit_once_and_batches_depend_on_their_number_alone(digits):
    scene = Scene(size=60, n_clutter=2)
    epoch = Scenes(digits, scene, batch=16, seed=1, epoch=2)
    assert [len(batch.labels) for batch in epoch] == [16, 16, 8] and len(epoch) == 3
    assert sorted(torch.cat([batch.labels for batch in epoch]).tolist()) == sorted(
        digits.labels.tolist()
    )
    again = Scenes(digits, scene, batch=16, seed=1, epoch=2)[1]
    assert all(torch.equal(one, other) for one, other in zip(epoch[1], again, strict=True))
    for other in (
        Scenes(digits, scene, batch=16, seed=1, epoch=3),
        Scenes(digits, scene, batch=16, seed=2, epoch=2),
    ):
        assert not torch.equal(other[1].images, again.images)


def test_in_order_means_as_they_are_stored(digits):
    first = Scenes(digits, Scene(), batch=16, seed=1, in_order=True)[0]
    assert torch.equal(first.labels, digits.labels[:16])


def test_a_canvas_that_is_too_small_and_clutter_that_is_too_large_are_refused():
    with pytest.raises(UsageError, match="a canvas of 28 pixels or more for n_digits 1, got 27"):
        Scene(size=27)
    with pytest.raises(UsageError, match="a canvas of 84 pixels or more for n_digits 2, got 60"):
        Scene(size=60, n_digits=2)
    with pytest.raises(UsageError, match="1 to 28 pixels, got 29"):
        Scene(size=60, clutter_size=29)
