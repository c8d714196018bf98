"""Scenes and their sentences: every word is true of the picture, and nothing is in doubt."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.digit_captions import (
    APART,
    HEIGHTS,
    NAMES,
    VOCABULARY,
    CaptionScenes,
    make_caption_scenes,
)
from saccade.zoo.tasks.mnist import SIDE, Digits

N, SIZE = 30, 88


@pytest.fixture(scope="module")
def digits():
    """Digits whose every pixel tells whose it is."""
    torch.manual_seed(0)
    images = torch.randint(1, 256, (N, SIDE, SIDE), dtype=torch.uint8)
    return Digits(images, torch.arange(N) % 10)


@pytest.fixture(scope="module")
def made(digits):
    chosen = torch.arange(3 * 60).view(60, 3) % N
    return make_caption_scenes(digits, chosen, size=SIZE, generator=generator_of(5, 0))


def corner(window):
    x, y, half_width, half_height = window.tolist()
    return round((y - half_height + 1) * SIZE / 2), round((x - half_width + 1) * SIZE / 2)


def words_of(made, row):
    return VOCABULARY.decode(made.sentences.target_out[row].tolist())


def said_by_hand(image, corners, digits):
    """The sentence of a scene, found by comparing pixels and measuring heights."""
    parts = []
    for top, left in corners:
        seen = (image[top : top + SIDE, left : left + SIDE] * 255).round().to(torch.uint8)
        (which,) = (digits.images == seen).flatten(1).all(1).nonzero()[:, 0].tolist()
        third = (3 * top) // (SIZE - SIDE + 1)
        parts.append(f"{NAMES[digits.labels[which]]} at the {HEIGHTS[third]}")
    return {
        1: "{}",
        2: "{} and {}",
        3: "{} , {} and {}",
    }[len(parts)].format(*parts)


def test_every_sentence_tells_the_digits_from_left_to_right_with_their_heights(made, digits):
    counts = set()
    for row in range(60):
        n = int(made.about[row].max()) + 1
        corners = [corner(window) for window in made.windows[row, :n]]
        counts.add(n)
        assert " ".join(words_of(made, row)) == said_by_hand(made.images[row, 0], corners, digits)
    assert counts == {1, 2, 3}


def test_nothing_is_on_the_canvas_but_what_is_told(made):
    for row in range(60):
        rest = made.images[row, 0].clone()
        for window in made.windows[row, : int(made.about[row].max()) + 1]:
            top, left = corner(window)
            rest[top : top + SIDE, left : left + SIDE] = 0
        assert not rest.any()


def test_digits_do_not_overlap_and_their_order_is_clear(made):
    for row in range(60):
        corners = [corner(window) for window in made.windows[row, : int(made.about[row].max()) + 1]]
        assert [left for _, left in corners] == sorted(left for _, left in corners)
        for at, one in enumerate(corners):
            for other in corners[:at]:
                assert max(abs(one[axis] - other[axis]) for axis in (0, 1)) >= SIDE
                assert one[1] - other[1] >= APART


def test_a_word_is_about_the_digit_it_names_or_places_and_other_words_about_none(made):
    for row in range(60):
        words, about = words_of(made, row), made.about[row].tolist()
        number = -1
        for word, of in zip(words, about, strict=False):
            number += word in NAMES
            assert of == (number if word in NAMES + HEIGHTS else -1)
        assert set(about[len(words) :]) <= {-1}


def test_batches_depend_on_seed_epoch_and_number_alone(digits):
    epoch = CaptionScenes(digits, size=SIZE, batch=16, seed=1, epoch=2)
    assert [len(batch.images) for batch in epoch] == [16, 14]
    again = CaptionScenes(digits, size=SIZE, batch=16, seed=1, epoch=2)[1]
    assert torch.equal(epoch[1].images, again.images)
    assert torch.equal(epoch[1].sentences.target_out, again.sentences.target_out)
    other = CaptionScenes(digits, size=SIZE, batch=16, seed=1, epoch=3)[1]
    assert not torch.equal(other.images, again.images)


def test_a_canvas_without_room_for_three_digits_is_refused(digits):
    with pytest.raises(UsageError, match="a side of 84 pixels or more, got 60"):
        CaptionScenes(digits, size=60, batch=2, seed=0)
